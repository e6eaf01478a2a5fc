"""The formats of a report, and where each goes: into a file, or to standard output."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, cast
from urllib.parse import quote

import click

from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_reports.document.model import Document
from lockstep_reports.document.published import Report

_MARGIN_SECONDS = 30.0  # what led to it, and the scrapes after it
_TIMEOUT_SECONDS = 300.0


def write_board(report: Report, prometheus: str | None, path: Path) -> None:
    """Writes what the board of the job showed from its first sign to its last; or ValueError.

    ``lockstep dashboards snapshot`` draws it, in a process: components meet in files.
    """
    if prometheus is None:
        raise ValueError(
            "--board needs a Prometheus; give its address as SOURCE or by --signs-from"
        )
    begin = report.first_sign or getattr(report, "first_step", None)
    end, job_id = report.last_sign or report.last_progress, getattr(report, "job_id", None)
    if not job_id or begin is None or end is None:
        raise ValueError("--board: this recording has no job id or no times; leave --board out")
    window = ("--from", f"{begin - _MARGIN_SECONDS:.3f}", "--to", f"{end + _MARGIN_SECONDS:.3f}")
    command = [
        *(sys.executable, "-m", "lockstep_cli.main", "dashboards", "snapshot", "job"),
        *("--prometheus", prometheus, *window, "--job", job_id),
        *("--out", str(path)),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"--board: no snapshot within {_TIMEOUT_SECONDS:.0f} s") from None
    # Status 1: the page is there, and says which of its queries failed.
    if done.returncode not in {0, 1}:
        lines = done.stderr.strip().splitlines() or ["the command says nothing"]
        raise ValueError(f"--board: {lines[-1].removeprefix('lockstep: ')}")


def link_to(board: Path, page: Path) -> str:
    """The address of a snapshot in a report's page, relative to that page."""
    return quote(os.path.relpath(board, page.parent))


STDOUT = Path("-")
Command = TypeVar("Command", bound=Callable[..., Any])


class Renderer(Protocol):
    """What a renderer's module offers."""

    def render(self, document: Document, path: Path) -> str | bytes:
        """The report for a path; raises ValueError where this format cannot be made of it."""


class Format(NamedTuple):
    """One line of the list. The module is imported only when its format is asked for."""

    name: str
    module: str
    metavar: str
    help: str


FORMATS = (
    Format("json", "lockstep_reports.render.json_text", "FILE|-",
           "File for the report as JSON; - for standard output, with nothing else there."),
    Format("html", "lockstep_reports.render.html", "FILE",
        "File for the page; default ./lockstep-report-NAME.html. With --json - or --markdown - a"
        " page is written only when this option is given."),
    Format("markdown", "lockstep_reports.render.markdown", "FILE|-",
           "File for the report as Markdown, for an incident tracker; - as with --json."),
    Format("perfetto", "lockstep_reports.render.perfetto", "FILE",
           "File for a trace for ui.perfetto.dev; compressed by gzip when the name ends in .gz."),
)  # fmt: skip
FLAGS = ", ".join(f"--{each.name}" for each in FORMATS)


def add_format_options(command: Command) -> Command:
    """Gives a command one option a format."""
    file = click.Path(path_type=Path, dir_okay=False)
    for each in reversed(FORMATS):
        option = click.option(f"--{each.name}", metavar=each.metavar, type=file, help=each.help)
        command = option(command)
    return command


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Path of each format that is written, ``-`` for standard output; two at one are a ValueError.

    ``board`` is a snapshot that lies next to them; the HTML page links to it.
    """

    paths: Mapping[str, Path]
    board: Path | None = None

    def __post_init__(self) -> None:
        paths = self._list_paths()
        # The second format in a file would overwrite the first.
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is given for two formats; give each of them its own place")

    def _list_paths(self) -> list[Path]:
        return [*self.paths.values(), *([self.board] if self.board else [])]

    @property
    def to_stdout(self) -> bool:
        """Whether standard output belongs to a format."""
        return STDOUT in self.paths.values()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are written."""
        return tuple(path for path in self._list_paths() if path != STDOUT)

    def write(self, document: Document) -> None:
        """Renders every format, then writes them; raises ValueError, or OSError with the file."""
        if self.board is not None and "html" in self.paths:
            link = "the board over the same time", link_to(self.board, self.paths["html"])
            document = replace(document, links=(*document.links, link))
        # All texts first: a format that fails must not leave the files of the others behind.
        for path, text in list(self._render(document)):
            if path == STDOUT:
                click.echo(text, nl=False)
            else:
                _write(path, text)

    def _render(self, document: Document) -> Iterator[tuple[Path, str | bytes]]:
        for each in FORMATS:
            if each.name in self.paths:
                renderer = cast("Renderer", import_module(each.module))
                yield self.paths[each.name], renderer.render(document, self.paths[each.name])


def _write(path: Path, text: str | bytes) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        # The error of the temporary file names a path that the user never gave.
        raise OSError(error.errno, error.strerror, str(path)) from error
