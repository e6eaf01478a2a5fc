"""Compiles instrumentation/native into lockstep._native where the wheel is built, if it can be.

Without a compiler or Python's headers the wheel is made all the same: the pen in Python does then
what the one in C would have done.
"""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = "instrumentation/native"
_FLAGS = ("-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-fvisibility=hidden")


class BuildNative(BuildHookInterface[Any]):
    """Hatchling's way in; ``[tool.hatch.build.targets.wheel.hooks.custom]`` names this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles beside the Python files, and makes the wheel one for this Python and machine."""
        del version
        root = Path(self.root)
        name = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
        made = root / "instrumentation" / "lockstep" / name
        problem = compile_to(made, root / _SOURCES)
        if problem:
            made.unlink(missing_ok=True)
            self.app.display_warning(f"lockstep._native is left out: {problem}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(made)] = f"lockstep/{name}"


def compile_to(made: Path, sources: Path) -> str:
    """Compiles all C files of a folder into one module; gives what went wrong, or nothing."""
    headers = sysconfig.get_path("include")
    if not (Path(headers) / "Python.h").exists():
        return f"Python.h is not in {headers}"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    files = sorted(str(path) for path in sources.glob("*.c"))
    beside = made.with_suffix(".new")  # a process that has the old one open keeps it whole
    try:
        subprocess.run(
            [compiler[0], *_FLAGS, f"-I{headers}", "-o", str(beside), *files],
            check=True,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return f"there is no compiler {compiler[0]}"
    except subprocess.CalledProcessError as error:
        return str(error.stderr)[-2000:]
    beside.replace(made)
    return ""
