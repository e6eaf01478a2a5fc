"""The terminal's part of a report on a log: outcome, key figures, first lines, slow steps."""

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lockstep_reports.log_analysis import LogAnalysis
from lockstep_reports.render.log_text import (
    known_cards,
    log_headline,
    log_severity,
    log_story,
    rank_of,
)
from lockstep_reports.render.palette import SEVERITY_COLOURS
from lockstep_reports.step_losses import loss_sentence
from lockstep_reports.wording import clock, printable

# One line of a log can have megabytes.
_LINE_WIDTH = 160


def log_blocks(analysis: LogAnalysis) -> list[RenderableType]:
    """What the terminal prints; text from the log is printed without markup."""
    colour = SEVERITY_COLOURS[log_severity(analysis)]
    title = Text(log_headline(analysis), style=f"bold {colour}")
    blocks: list[RenderableType] = [
        Panel(
            Text.assemble(title, "\n", log_story(analysis)),
            title=Text(analysis.path.name),
            border_style=colour,
            expand=False,
        )
    ]
    for card in known_cards(analysis):
        remark = f" ({card.remark})" if card.remark else ""
        blocks.append(Text(f"  {card.label}: {card.value}{remark}"))
    if analysis.first_lines:
        blocks.append(_lines_table(analysis))
    blocks += [Text(f"  {loss_sentence(loss)}") for loss in analysis.summary.losses]
    blocks += [Text(printable(note)) for note in analysis.notes]
    return blocks


def _lines_table(analysis: LogAnalysis) -> Table:
    table = Table(title="What the log tells, first cause in bold", title_justify="left")
    for column in ("when (UTC)", "where", "rank", "what", "line"):
        table.add_column(column, overflow="fold")
    for line in analysis.first_lines:
        table.add_row(
            clock(line.time), Text(f"{line.file}:{line.number}"), rank_of(line), line.kind,
            Text(printable(line.text)[:_LINE_WIDTH]),
            style="bold red" if line == analysis.incident.first else "",
        )  # fmt: skip
    return table
