"""A report for an incident tracker: Markdown with plain tables, text from records escaped."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from lockstep_reports.document.model import Document, Section, Shares, Table
from lockstep_reports.wording import escaped


def render(document: Document, _path: Path) -> str:
    """The text, with a newline at its end."""
    lines = [f"# {escaped(document.headline)}", ""]
    lines += [f"{escaped(document.name)}: {escaped(', '.join(document.facts))}.", ""]
    lines += [escaped(document.story), ""]
    lines += [f"- {escaped(card.label)}: {escaped(card.value)}" for card in document.cards]
    for section in document.sections:
        lines += ["", *_write_section(section)] if section.is_brief else []
    lines += _write_list("What to do next", document.advice)
    # Two spaces at the end of a line are Markdown's line break.
    lines += ["", *(f"_{escaped(remark)}_  " for remark in document.remarks)]
    gaps = document.published.unknown.items()
    lines += ["", "## What this report cannot tell", ""] if gaps else []
    lines += [f"- `{name}`: {escaped(reason)}" for name, reason in gaps]
    return "\n".join(lines).rstrip() + "\n"


def _write_section(section: Section) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    for block in section.blocks:
        table = block.table() if isinstance(block, Shares) else block
        if isinstance(table, Table):
            yield from ("", *_write_table(table))
        elif isinstance(table, tuple):
            yield from ("", *(f"- {escaped(sentence)}" for sentence in table))


def _write_table(table: Table) -> Iterator[str]:
    yield _write_row(table.columns)
    yield _write_row(["---"] * len(table.columns))
    for row in table.rows:
        bold = "**" if row.is_marked else ""
        yield _write_row(f"{bold}{escaped(cell)}{bold}" if cell else "" for cell in row.cells)


def _write_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _write_list(title: str, sentences: Iterable[str]) -> list[str]:
    lines = [f"- {escaped(sentence)}" for sentence in sentences]
    return ["", f"## {title}", "", *lines] if lines else []
