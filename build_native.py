"""Compiles instrumentation/native into lockstep._native where the wheel is built, if it can be.

Without a compiler or Python's headers the wheel is pure Python, and the plain recorder writes rows.
"""

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = "instrumentation/native"
_FLAGS = ("-O3", "-fPIC", "-shared", "-fno-strict-aliasing", "-fvisibility=hidden")


class BuildNative(BuildHookInterface[Any]):
    """The build hook of hatchling that ``[tool.hatch.build.targets.wheel.hooks.custom]`` names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the wheel specific to this Python and machine; editable ones compile in place."""
        root = Path(self.root)
        name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        in_place = root / "instrumentation" / "lockstep"
        self._folder = in_place if version == "editable" else Path(tempfile.mkdtemp())
        library = self._folder / name
        # A running process has it mapped: a new file, not new content in the old one.
        library.unlink(missing_ok=True)
        problem = compile_to(library, root / _SOURCES)
        if problem:
            self.app.display_warning(f"lockstep._native is left out: {problem}")
            return
        if version == "editable":
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(library)] = f"lockstep/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the temporary folder, whose library the wheel now contains."""
        del build_data, artifact_path
        if version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)


def compile_to(library: Path, sources: Path, *extra_flags: str) -> str:
    """Compiles all C files of a folder into one module; returns the problem, or an empty text.

    Warnings are left off: a compiler of another year must not break a user's installation.
    """
    headers = sysconfig.get_path("include")
    if not (Path(headers) / "Python.h").exists():
        return f"Python.h is not in {headers}"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    files = sorted(str(path) for path in sources.glob("*.c"))
    try:
        subprocess.run(
            [*compiler, *_FLAGS, *extra_flags, f"-I{headers}", "-o", str(library), *files],
            check=True,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return f"there is no compiler {compiler[0]}"
    except subprocess.CalledProcessError as error:
        return str(error.stderr)[-2000:]
    return ""
