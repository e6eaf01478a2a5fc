"""Processes whose NCCL or RCCL writes the Inspector's files, as their own environment says."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep_agent.sources.job_processes import IDENTITY_VARIABLES, JobProcess, ProcessFinder

SETTLED_SECONDS = 20.0
"""Age of a process before which it may not be the program yet that its launcher starts."""
_PREFIX = "NCCL_INSPECTOR_"
_INTERVAL = f"{_PREFIX}DUMP_THREAD_INTERVAL_MICROSECONDS"
_NAMES = (
    *(*IDENTITY_VARIABLES, "SLURM_JOBID", _INTERVAL),
    *(f"{_PREFIX}{name}" for name in ("ENABLE", "DUMP_DIR", "PROM_DUMP")),
)
_MAX_PATH_CHARACTERS = 4096
_MAX_INTERVAL_SECONDS = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectorProcess(JobProcess):
    """A process that has the Inspector switched on.

    Attributes:
        folder: of its files, by way of the process's own root or working directory.
        interval_seconds: between two dumps; None where the Inspector is told to write none.
        is_text: whether it writes the Prometheus text, a file a GPU, and not JSON.
    """

    folder: Path
    interval_seconds: float | None
    is_text: bool


@dataclass(slots=True)
class InspectorProcesses(ProcessFinder[InspectorProcess]):
    """Finds them."""

    settled_seconds: float = SETTLED_SECONDS

    def _read_process(self, pid: int, start: int) -> InspectorProcess | None:
        process = self.procfs / str(pid)
        environment = self.read_environment(process, _NAMES, _MAX_PATH_CHARACTERS)
        if environment.get(f"{_PREFIX}ENABLE", "0") in {"", "0"}:
            return None
        return InspectorProcess(
            **asdict(self.identify(pid, start, environment)),
            folder=_folder(process, environment),
            interval_seconds=_interval_seconds(environment.get(_INTERVAL, "")),
            is_text=environment.get(f"{_PREFIX}PROM_DUMP", "0") not in {"", "0"},
        )


def _folder(process: Path, environment: Mapping[str, str]) -> Path:
    job = environment.get("SLURM_JOBID") or "unknown-jobid"
    name = environment.get(f"{_PREFIX}DUMP_DIR") or f"nccl-inspector-{job}"
    if not os.path.isabs(name):  # noqa: PTH117  # of another root
        return process / "cwd" / name
    return process / "root" / os.path.normpath(name).lstrip("/")


def _interval_seconds(text: str) -> float | None:
    """Seconds between dumps; the Inspector's own default is to write none."""
    is_number = text.isascii() and text.isdecimal() and len(text) < 19  # noqa: PLR2004  # of 64 bits
    return min(int(text) / 1e6, _MAX_INTERVAL_SECONDS) if is_number else None
