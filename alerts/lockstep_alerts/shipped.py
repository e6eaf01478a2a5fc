"""Finds what stands beside the code: in a wheel inside the package, in the repository above it."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def _beside(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.exists() else _PACKAGE.parent / name


def spec_path() -> Path:
    """The alert spec that comes with Lockstep."""
    return _beside("slos.yaml")


def runbooks_path() -> Path:
    """The folder of runbooks, one file an alert."""
    return _beside("runbooks")
