"""Finds the files that ship with the code: in the package of a wheel, above it in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def _shipped(name: str) -> Path:
    in_wheel = _PACKAGE / name
    return in_wheel if in_wheel.exists() else _PACKAGE.parent / name


def spec_path() -> Path:
    """The alert spec that comes with Lockstep."""
    return _shipped("slos.yaml")


def one_machine_spec_path() -> Path:
    """The spec of a first try on one machine: what it has other than the shipped one."""
    return _shipped("one_machine.yaml")


def runbooks_path() -> Path:
    """The folder of runbooks, one file an alert."""
    return _shipped("runbooks")
