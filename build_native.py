"""Compiles instrumentation/native into lockstep._native and NCCL's plugin, for the wheel.

A checkout without a compiler or Python's headers gets a pure wheel, in which the plain recorder
writes rows. ``make wheels`` names a machine in LOCKSTEP_WHEEL_MACHINE: then the wheel is of that
machine, by the distribution's cross compiler where it is another one, and a problem is an error.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MACHINES = ("x86_64", "aarch64")
_SOURCES = "instrumentation/native"
PLUGIN = "libnccl-profiler-lockstep.so"
"""In the package; NCCL finds it by NCCL_PROFILER_PLUGIN=lockstep where the loader's path has it."""
_PLUGIN_SOURCES = ("plugin/*.c", "checksum.c")
_FLAGS = ("-O3", "-fPIC", "-shared", "-fno-strict-aliasing", "-fvisibility=hidden")
_LIBRARIES = ("-ldl", "-lpthread")  # of a libc before 2.34


class BuildNative(BuildHookInterface[Any]):
    """The build hook of hatchling that ``[tool.hatch.build.targets.wheel.hooks.custom]`` names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Makes the wheel specific to this Python and a machine; editable ones compile in place."""
        root = Path(self.root)
        wanted = os.environ.get("LOCKSTEP_WHEEL_MACHINE", "")
        if wanted and wanted not in MACHINES:
            raise ValueError(f"LOCKSTEP_WHEEL_MACHINE {wanted!r} is none of {', '.join(MACHINES)}")
        machine = wanted or platform.machine()
        suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
        name = f"_native{suffix.replace(platform.machine(), machine)}"
        in_place = root / "instrumentation" / "lockstep"
        self._folder = in_place if version == "editable" else Path(tempfile.mkdtemp())
        library, plugin = self._folder / name, self._folder / PLUGIN
        problem = compile_to(library, root / _SOURCES, machine)
        problem = problem or compile_to(plugin, root / _SOURCES, machine, _PLUGIN_SOURCES)
        if problem and wanted:
            raise RuntimeError(f"lockstep._native cannot be compiled for {machine}: {problem}")
        if problem:
            self.app.display_warning(f"lockstep._native is left out: {problem}")
            return
        if version == "editable":
            return
        python = f"cp{sysconfig.get_config_var('py_version_nodot')}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{python}-{python}-linux_{machine}"
        build_data["force_include"] |= {
            str(library): f"lockstep/{name}",
            str(plugin): f"lockstep/{PLUGIN}",
        }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the temporary folder, whose library the wheel now contains."""
        del build_data, artifact_path
        if version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)


def compile_to(
    library: Path, sources: Path, machine: str, patterns: tuple[str, ...] = ("*.c",)
) -> str:
    """Compiles C files of a folder into one library; returns the problem, or an empty text.

    Python's headers are those of this Python for both machines: their sizes of types are the same.
    Warnings are left off: a compiler of another year must not break a user's installation.
    """
    headers = sysconfig.get_path("include")
    if not (Path(headers) / "Python.h").exists():
        return f"Python.h is not in {headers}"
    own = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    compiler = shlex.split(own) if machine == platform.machine() else [f"{machine}-linux-gnu-gcc"]
    files = sorted(str(path) for pattern in patterns for path in sources.glob(pattern))
    # A running process has it mapped: a new file, not new content in the old one.
    library.unlink(missing_ok=True)
    try:
        subprocess.run(
            [*compiler, *_FLAGS, f"-I{headers}", "-o", str(library), *files, *_LIBRARIES],
            check=True,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return f"there is no compiler {compiler[0]}"
    except subprocess.CalledProcessError as error:
        return str(error.stderr)[-2000:]
    return ""
