"""Where a report goes: files by format, or standard output for one of them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import click

from lockstep_records.atomic_file import write_atomically
from lockstep_reports.board import link_to
from lockstep_reports.compare import Comparison, comparison_json
from lockstep_reports.job_report import JobReport

STDOUT = Path("-")
_Renderer: TypeAlias = Callable[[JobReport, Comparison | None], str | bytes]


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
        # Two formats in one file would leave the second alone, without a word.
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
        return tuple(path for path, _ in self._renderers() if path != STDOUT)

    def write(self, report: JobReport, comparison: Comparison | None) -> None:
        """Renders every format, then writes them.

        Raises:
            ValueError: a format cannot be made from this recording.
            OSError: a file cannot be written; the error names it.
        """
        # All texts first: a format that fails must not leave the files of the others behind.
        texts = [(path, render(report, comparison)) for path, render in self._renderers()]
        for path, text in texts:
            if path == STDOUT:
                click.echo(text, nl=False)
            else:
                _write(path, text)

    def _renderers(self) -> Iterator[tuple[Path, _Renderer]]:
        if self.json is not None:
            yield self.json, json_text
        if self.html is not None:
            from lockstep_reports.render.html import as_html  # noqa: PLC0415  # JSON does not need it

            board = "" if self.board is None else link_to(self.board, self.html)
            yield self.html, partial(as_html, board=board)
        if self.markdown is not None:
            from lockstep_reports.render.markdown import as_markdown  # noqa: PLC0415  # nor this

            yield self.markdown, as_markdown
        if self.perfetto is not None:
            yield self.perfetto, self._trace

    def _trace(self, report: JobReport, comparison: Comparison | None) -> bytes:
        from lockstep_reports.render.perfetto import trace_bytes  # noqa: PLC0415  # nor this

        del comparison
        assert self.perfetto is not None
        return trace_bytes(report, compress=self.perfetto.suffix == ".gz")


def json_text(report: JobReport, comparison: Comparison | None = None) -> str:
    """The report as indented JSON, with a newline at its end."""
    # These are of every kind of report, so no kind fills them.
    payload = report.to_json() | {
        "headline": report.headline,
        "severity": report.severity,
        "slo": None,
        "comparison": None if comparison is None else comparison_json(comparison),
        "unknown": report.missing_reasons,
    }
    return json.dumps(payload, indent=2, allow_nan=False) + "\n"


def _write(path: Path, text: str | bytes) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        # The error of the temporary file names a path that the user never gave.
        raise OSError(error.errno, error.strerror, str(path)) from error
