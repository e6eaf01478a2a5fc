"""The installed distribution: its name, its version, and how to install what an extra brings."""

from importlib.metadata import PackageNotFoundError, version

# The name `lockstep` on the public index belongs to another project: never install ours by it.
DISTRIBUTION = "lockstep-train"


def installed_version() -> str:
    """Version of the installed distribution; ``unknown`` where only its source is on the path."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def install_hint(extras: str) -> str:
    """The command that installs extras, names with commas between, for error messages."""
    return f"run pip install '.[{extras}]' in the checkout"
