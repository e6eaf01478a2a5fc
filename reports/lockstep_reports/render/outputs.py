"""Where a report goes: files by format, or standard output for one of them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from lockstep_records.file_access.atomic_file import write_atomically
from lockstep_reports.document.model import Document
from lockstep_reports.render.board import link_to

STDOUT = Path("-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Path of each format; None where it is not written, ``-`` for standard output.

    ``board`` is a snapshot that lies next to them; the HTML page links to it.

    Raises:
        ValueError: two formats have the same path, or both standard output.
    """

    json: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    perfetto: Path | None = None
    board: Path | None = None

    def __post_init__(self) -> None:
        formats = (self.json, self.html, self.markdown, self.perfetto, self.board)
        paths = [path for path in formats if path]
        # The second format in a file would overwrite the first.
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is given for two formats; give each of them its own place")

    @property
    def to_stdout(self) -> bool:
        """Whether standard output belongs to a format."""
        return STDOUT in {self.json, self.markdown}

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are written."""
        formats = (self.json, self.html, self.markdown, self.perfetto, self.board)
        return tuple(path for path in formats if path is not None and path != STDOUT)

    def write(self, document: Document) -> None:
        """Renders every format, then writes them.

        Raises:
            ValueError: a format cannot be made from this recording.
            OSError: a file cannot be written; the error names it.
        """
        # All texts first: a format that fails must not leave the files of the others behind.
        for path, text in list(self._render(document)):
            if path == STDOUT:
                click.echo(text, nl=False)
            else:
                _write(path, text)

    def _render(self, document: Document) -> Iterator[tuple[Path, str | bytes]]:
        """Path and text of each format; each is imported where it is needed, for JSON is quick."""
        if self.json is not None:
            yield self.json, json_text(document)
        if self.html is not None:
            from lockstep_reports.render.html import as_html  # noqa: PLC0415  # loads jinja2

            if self.board is not None:
                address = link_to(self.board, self.html)
                document = document.with_link("the board over the same time", address)
            yield self.html, as_html(document)
        if self.markdown is not None:
            from lockstep_reports.render.markdown import as_markdown  # noqa: PLC0415  # as above

            yield self.markdown, as_markdown(document)
        if self.perfetto is not None:
            from lockstep_reports.render.perfetto import trace_bytes  # noqa: PLC0415  # as above

            yield self.perfetto, trace_bytes(document, compress=self.perfetto.suffix == ".gz")


def json_text(document: Document) -> str:
    """The report as indented JSON, with a newline at its end."""
    return json.dumps(document.published, indent=2, allow_nan=False, default=_list_fields) + "\n"


def _list_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _write(path: Path, text: str | bytes) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        # The error of the temporary file names a path that the user never gave.
        raise OSError(error.errno, error.strerror, str(path)) from error
