"""A report in the terminal; text of others is printed without markup and control characters."""

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from lockstep_records.text.printable import printable
from lockstep_reports.document.model import Block, Document, Figure, Section, Shares, Table

SEVERITY_COLOURS = {
    **dict.fromkeys(("failed", "hung", "out_of_memory", "not_finite", "slow"), "red"),
    **dict.fromkeys(("resumed", "stopped", "unknown"), "yellow"),
    "nobody": "green",
}
_WIDTH_OF_FILES = 120
_MAX_CELL_CHARACTERS = 160


def show(document: Document) -> None:
    """Prints the report to standard output."""
    console = Console()
    # A pipe has no width of its own, and rich's 80 columns would fold the tables.
    console = console if console.is_terminal else Console(width=_WIDTH_OF_FILES)
    for block in _list_blocks(document):
        console.print(block)


def _list_blocks(document: Document) -> Iterator[RenderableType]:
    colour = SEVERITY_COLOURS[document.severity]
    headline = _text(document.headline, style=f"bold {colour}")
    # `Text` and not a string: rich would take "[red]" in a job id for markup.
    title, story = _text(document.name), _text(document.story)
    text = Text.assemble(headline, "\n", story)
    yield Panel(text, title=title, border_style=colour, expand=False)
    for card in document.cards:
        remark = f" ({card.remark})" if card.remark else ""
        yield Text("  ") + _text(f"{card.label}: {card.value}{remark}")
    for section in document.sections:
        for block in section.blocks if section.is_brief else ():
            yield from _show_block(section, block)
    for remark in document.remarks:
        yield _text(remark)
    for sentence in document.advice:
        yield _text(f"→ {sentence}")


def _show_block(section: Section, block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Figure):
        return
    if isinstance(block, Shares):
        yield _text(block.sentence(section.title))
    elif isinstance(block, Table):
        yield _show_table(section.title, block)
    else:
        for sentence in block:
            yield Text("  • ") + _text(sentence)


def _show_table(title: str, table: Table) -> RichTable:
    rich_table = RichTable(title=_text(title), title_justify="left")
    for index, name in enumerate(table.columns):
        is_text = index < table.num_texts
        rich_table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in table.rows:
        cells = [_text(cell[:_MAX_CELL_CHARACTERS]) for cell in row.cells]
        rich_table.add_row(*cells, style="bold red" if row.is_marked else "")
    return rich_table


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)
