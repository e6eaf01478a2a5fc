"""The options of the command that concern libdcgm."""

import re
from pathlib import Path

import click

from lockstep_agent.sources.dcgm import EMBEDDED

_HOST = re.compile(
    r"[A-Za-z0-9._-]{1,255}(?::(?P<port>[0-9]{1,5}))?|\[[0-9A-Fa-f:.]{2,45}\](?::\d{1,5})?"
)
_SOCKET = re.compile(r"unix:/[^\0]{1,100}")


def _engine(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str | None:
    if value == "off":
        return None
    if value == EMBEDDED or _HOST.fullmatch(value) or _SOCKET.fullmatch(value):
        return value
    raise click.BadParameter(
        f"{value!r} is no engine; give off, embedded, HOST[:PORT] or unix:/PATH of its socket"
    )


DCGM = click.option(
    "--dcgm",
    metavar="ENGINE",
    default="off",
    show_default=True,
    callback=_engine,
    help="Profiling of GPUs before Hopper by libdcgm: embedded, HOST[:PORT] or unix:/PATH.",
)
DCGM_LIBRARY = click.option(
    "--dcgm-library",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The libdcgm to load.  [default: libdcgm.so.4 or .3, as the loader finds it]",
)
