"""A report of any kind in the terminal, with the comparison and the advice."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep_reports.compare import Comparison, comparison_sentence, signed
from lockstep_reports.job_report import JobReport
from lockstep_reports.wording import duration, printable

_WIDTH_OF_FILES = 120


def show(report: JobReport, comparison: Comparison | None = None) -> None:
    """Prints the report to standard output."""
    console = Console()
    # A pipe has no width of its own, and rich's 80 columns would fold the tables.
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    for block in report.terminal_blocks():
        console.print(block)
    if comparison is not None:
        console.print(_comparison_table(comparison))
        console.print(Text(comparison_sentence(comparison)))
    for sentence in report.advice:
        console.print(Text(f"→ {printable(sentence)}"))


def _comparison_table(comparison: Comparison) -> Table:
    table = Table(title=Text(f"Against {comparison.against}"), title_justify="left")
    table.add_column("what")
    for column in ("before", "after", "difference", "95 % interval", "effect"):
        table.add_column(column, justify="right")
    for change in comparison.changes:
        interval = "unknown"
        if change.low_seconds is not None:
            interval = f"{signed(change.low_seconds)} to {signed(change.high_seconds)}"
        table.add_row(
            change.what,
            duration(change.before_seconds),
            duration(change.after_seconds),
            signed(change.difference_seconds),
            interval,
            "unknown" if change.effect is None else f"{change.effect:+.2f}",
            style="bold" if change.is_sure else "",
        )
    return table
