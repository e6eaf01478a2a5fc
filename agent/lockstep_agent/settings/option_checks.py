"""Checks of the agent's option values that a click type alone does not make."""

import re
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

import click

from lockstep_agent.collector_names import COLLECTORS
from lockstep_agent.sources.dcgm import EMBEDDED
from lockstep_records.distribution import install_hint
from lockstep_records.files.jobs import find_root, plain_roots

_DCGM_HOST = re.compile(
    r"[A-Za-z0-9._-]{1,255}(?::(?P<port>[0-9]{1,5}))?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?"
)
_DCGM_SOCKET = re.compile(r"unix:/[^\0]{1,100}")


def check_roots(
    _ctx: click.Context, _parameter: click.Parameter, value: tuple[Path, ...]
) -> tuple[Path, ...]:
    """The folders of jobs, which need not exist yet; the parent of one that has no star must."""
    roots = tuple(dict.fromkeys(root.absolute() for root in value)) or (find_root(),)
    for root in plain_roots(roots):
        if not root.parent.is_dir() or (root.exists() and not root.is_dir()):
            raise click.BadParameter(
                f"{root} cannot hold jobs; give a folder whose parent folder exists"
            )
    return roots


def check_name(value: str) -> str:
    """A name that can be the value of a label.

    Raises:
        ValueError: it cannot be one.
    """
    if not value or not value.isprintable():
        raise ValueError(f"{value!r} cannot be a label; give a printable name")
    return value


def check_collector(value: str) -> str:
    """The name of a collector.

    Raises:
        ValueError: no collector has it; the text has the names that are nearest.
    """
    if value not in COLLECTORS:
        near = ", ".join(get_close_matches(value, COLLECTORS, cutoff=0))
        raise ValueError(f"{value!r} is unknown; the nearest collectors are {near}")
    return value


def check_url(value: str) -> str:
    """An address for HTTP.

    Raises:
        ValueError: it is none.
    """
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r} is not an address; give one that begins with http://")
    return value


def check_dcgm(value: str) -> str | None:
    """An engine of libdcgm; None for ``off``.

    Raises:
        ValueError: it is neither.
    """
    if value == "off":
        return None
    if value == EMBEDDED or _DCGM_HOST.fullmatch(value) or _DCGM_SOCKET.fullmatch(value):
        return value
    raise ValueError(f"{value!r} is not an engine; give off, embedded, HOST[:PORT] or unix:/PATH")


def check_archive(value: str) -> str:
    """An address that fsspec can write, with the package that its scheme needs.

    Raises:
        ValueError: it cannot, or the package is missing.
    """
    if find_spec("fsspec") is None:
        raise ValueError(f"it needs fsspec; {install_hint('archive')}")
    from fsspec import available_protocols  # noqa: PLC0415  # only who archives pays for it
    from fsspec.registry import known_implementations  # noqa: PLC0415  # the same

    for part in value.split("::"):  # a chain of file systems, as in simplecache::s3://bucket
        scheme, separator, _ = part.partition("://")
        if separator and scheme not in available_protocols():
            schemes = ", ".join(sorted(available_protocols()))
            raise ValueError(f"{value!r} has an unknown scheme; known are {schemes}")
        package = known_implementations[scheme]["class"].partition(".")[0] if separator else ""
        if package and find_spec(package) is None:
            raise ValueError(f"{value!r} needs the package {package}; install it")
    return value
