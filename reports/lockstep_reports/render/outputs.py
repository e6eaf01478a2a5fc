"""Where a report goes: files by format, standard output for one of them, or the terminal."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from lockstep_reports.compare import Comparison
from lockstep_reports.incident import LogReport
from lockstep_reports.render.files import html_text, json_text, write_text
from lockstep_reports.report import Report

STDOUT = Path("-")
_WIDTH_OF_FILES = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """Where each format goes; None where it is not wanted, ``-`` for standard output.

    Raises:
        ValueError: two formats want standard output, or two the same file.
    """

    json: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    perfetto: Path | None = None

    def __post_init__(self) -> None:
        told = [path for path in (self.json, self.html, self.markdown, self.perfetto) if path]
        twice = next((path for path in told if told.count(path) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is told for two formats; give each of them its own place")

    @property
    def to_stdout(self) -> bool:
        """Whether standard output belongs to a format."""
        return STDOUT in {self.json, self.markdown}

    def write(self, report: Report | LogReport, comparison: Comparison | None) -> None:
        """Makes every text first, then writes.

        Raises:
            ValueError: a format cannot be made from this recording.
            OSError: a file cannot be written; nothing half-made is left behind.
        """
        made = [(path, render(report, comparison)) for path, render in self._wanted()]
        for path, text in made:
            if path == STDOUT:
                click.echo(text, nl=False)
            else:
                write_text(path, text)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are written."""
        return tuple(path for path, _ in self._wanted() if path != STDOUT)

    def _wanted(
        self,
    ) -> Iterator[tuple[Path, Callable[[Report | LogReport, Comparison | None], str | bytes]]]:
        if self.json is not None:
            yield self.json, json_text
        if self.html is not None:
            yield self.html, html_text
        if self.markdown is not None:
            from lockstep_reports.render.markdown import as_markdown  # noqa: PLC0415  # only when wanted

            yield self.markdown, as_markdown
        if self.perfetto is not None:
            yield self.perfetto, self._perfetto

    def _perfetto(self, report: Report | LogReport, comparison: Comparison | None) -> bytes:
        from lockstep_reports.render.perfetto import trace_bytes  # noqa: PLC0415  # only when wanted

        del comparison
        assert self.perfetto is not None
        return trace_bytes(report, packed=self.perfetto.suffix == ".gz")


def show(report: Report | LogReport, comparison: Comparison | None) -> None:
    """Shows the report in the terminal."""
    from rich.console import Console  # noqa: PLC0415  # JSON need not wait for it

    from lockstep_reports.render import incident_text, terminal  # noqa: PLC0415  # likewise

    console = Console()
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    if isinstance(report, LogReport):
        incident_text.show_incident(report, console)
    else:
        terminal.show(report, console)
    if comparison is not None:
        terminal.show_comparison(comparison, console)
    terminal.show_advice(report, console)
