"""NCCL's plugin, which records jobs without a line of Lockstep: its path, and how it is loaded."""

from collections.abc import Mapping
from pathlib import Path

LOADED, FOLLOWING = "NCCL_PROFILER_PLUGIN", "LOCKSTEP_NCCL_NEXT_PLUGIN"
_LIBRARY = Path(__file__).parents[1] / "libnccl-profiler-lockstep.so"


def plugin_path() -> Path:
    """The library that NCCL and RCCL load; ValueError where it was not compiled."""
    if not _LIBRARY.is_file():
        raise ValueError(f"{_LIBRARY} was not compiled; install a wheel of this machine, or gcc")
    return _LIBRARY


def plugin_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that load it; one that is loaded now is what it hands its calls on to.

    Raises:
        ValueError: it was not compiled.
    """
    path, before = str(plugin_path()), environment.get(LOADED, "")
    following = {FOLLOWING: before} if before not in {"", "none", path} else {}
    return {LOADED: path, **following}
