"""The results of a game day as a table in the terminal, HTML, JUnit XML and Markdown."""

from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Self
from xml.etree import ElementTree as ET

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lockstep_cli.gameday.judge import Finding
from lockstep_cli.gameday.rows import Row

COLUMNS = (
    "alerts", "notified", "nothing else", "ledger", "lost", "report", "resumed", "steps lost",
    "step time",
)  # fmt: skip


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one row.

    Attributes:
        missing: what this machine lacks for it; it was not run.
        departs: why it expects another thing than DESIGN does.
    """

    row: str
    failure: str
    says: str
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    missing: str = ""
    departs: str = ""

    @property
    def holds(self) -> bool:
        """Whether it was run and every check holds."""
        return not self.missing and all(finding.holds for finding in self.findings)

    @property
    def word(self) -> str:
        """``passed``, ``as decided`` where it departs from the design, or what it is not."""
        passed = "as decided" if self.departs else "passed"
        return "not run here" if self.missing else passed if self.holds else "FAILED"

    def cell(self, column: str) -> str:
        """What was found in a column, the failed checks with a cross before them."""
        texts = [
            ("" if finding.holds else "✗ ") + finding.text
            for finding in self.findings
            if finding.column == column
        ]
        return "; ".join(texts)

    @classmethod
    def of(cls, row: Row, findings: list[Finding], seconds: float) -> Self:
        """The result of a row that was played."""
        return cls(
            row=row.row,
            failure=row.failure,
            says=row.says,
            findings=tuple(findings),
            seconds=seconds,
            departs=row.departs,
        )

    @classmethod
    def broken(cls, row: Row, reason: str) -> Self:
        """The result of a row that could not be played to its end."""
        return cls.of(row, [Finding(column="alerts", holds=False, text=reason)], 0.0)

    @classmethod
    def not_run(cls, row: Row, reason: str) -> Self:
        """The result of a row for which the machine lacks something."""
        return cls(row=row.row, failure=row.failure, says=row.says, missing=reason)


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """All results, and how to make them again.

    Attributes:
        strangers: what the pager received of clusters that no row has.
    """

    seed: int
    ranks: int
    strategy: str
    seconds: float
    results: tuple[Result, ...]
    strangers: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """One sentence."""
        words = [result.word for result in self.results]
        counts = ", ".join(
            f"{words.count(word)} {word}"
            for word in ("passed", "as decided", "FAILED", "not run here")
        )
        again = f"--seed {self.seed} --ranks {self.ranks} --strategy {self.strategy}"
        return f"{len(words)} rows in {self.seconds / 60:.0f} min: {counts} ({again})"

    @property
    def columns(self) -> list[str]:
        """Columns in which a row has anything."""
        return [name for name in COLUMNS if any(result.cell(name) for result in self.results)]


def _show(document: Document, console: Console) -> None:
    """Prints the table: what people were told, and every check that fails."""
    table = Table("failure", "row", "result", "what came")
    for result in document.results:
        others = [each for each in result.findings if not each.holds and each.column != "alerts"]
        failed = [f"✗ {each.column}: {each.text}" for each in others]
        lines = [result.missing] if result.missing else [result.cell("alerts"), *failed]
        text = "\n".join(line for line in lines if line)
        table.add_row(result.failure, result.row, result.word, escape(text))
    console.print(table)
    for line in (document.headline, *document.strangers):
        console.print(line, markup=False)


def write(document: Document, files: Mapping[str, Path | None]) -> None:
    """Writes files by kind: ``.html``, ``.xml`` for JUnit, ``.md``; and prints the table."""
    for kind, path in files.items():
        if path is not None:
            path.write_text(_WRITERS[kind](document), encoding="utf-8")
    _show(document, Console())


def _as_junit(document: Document) -> str:
    """JUnit XML, a test case a row."""
    suite = ET.Element("testsuite", name="gameday", tests=str(len(document.results)))
    for result in document.results:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=f"gameday.{result.failure}",
            name=result.row,
            time=f"{result.seconds:.1f}",
        )
        if result.missing:
            ET.SubElement(case, "skipped", message=f"not run here: {result.missing}")
        elif not result.holds:
            failed = [f"{f.column}: {f.text}" for f in result.findings if not f.holds]
            ET.SubElement(case, "failure", message="; ".join(failed))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


_OTHER_WAYS = """
`lockstep gameday --soak 30m` trains cleanly for so long, with load on the machine and a restart of
every watcher, and judges that nobody is told and that nothing grows. `lockstep gameday --against
URL` is the dry run of an installation of your own: marked alerts and events go its public ways and
are taken back; what does not answer as an Alertmanager is sent nothing, and only with `--notify`
does anybody hear of it. `lockstep canary`, every hour, proves the way from a training loop to the
pager on the days between; TrainTelemetryMissing says when it no longer comes through.
"""


_PARTS = {
    "alerts": ("alerts",),
    "notified": ("notified", "nothing else"),
    "ledger": ("ledger", "lost"),
    "report": ("report",),
    "training": ("resumed", "steps lost", "step time"),
}
_MOST_CHARACTERS = 70


def _summarise_columns(result: Result, columns: tuple[str, ...]) -> str:
    """What was found in some columns; a check that fails at full length."""
    texts = []
    for finding in result.findings:
        if finding.column in columns and (finding.column, finding.text) != ("nothing else", "yes"):
            text = (
                shorten(finding.text, _MOST_CHARACTERS, placeholder="...")
                if finding.holds
                else finding.text
            )
            name = f"{finding.column} " if finding.column in {"resumed", "steps lost"} else ""
            texts.append(f"{'' if finding.holds else '✗ '}{name}{text}")
    return "; ".join(texts).replace("|", "\\|")


def _as_markdown(document: Document) -> str:
    """A table of all rows, in few words."""
    lines = [
        "# The game day",
        "",
        "<!-- Written by `lockstep gameday --markdown`. Do not edit. -->",
        "",
        f"{document.headline}.",
        "",
        "| row | result | " + " | ".join(_PARTS) + " |",
        "|" + " --- |" * (2 + len(_PARTS)),
    ]
    for result in document.results:
        word = f"not run here: {result.missing}" if result.missing else result.word
        cells = [_summarise_columns(result, columns) for columns in _PARTS.values()]
        lines.append(f"| {' | '.join((f'`{result.row}`: {result.says}', word, *cells))} |")
    lines += ["", *(f"{each}." for each in document.strangers)] * bool(document.strangers)
    departs = [f"- `{each.row}`: {each.departs}" for each in document.results if each.departs]
    if departs:
        lines += ["", "Where a row expects another thing than the design:", "", *departs]
    return "\n".join(lines) + "\n" + _OTHER_WAYS


def _as_html(document: Document) -> str:
    """One self-contained page."""
    from jinja2 import Template  # noqa: PLC0415  # only who asks for the page needs it

    text = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
    return str(Template(text, autoescape=True).render(document=document)) + "\n"


_WRITERS = {".html": _as_html, ".xml": _as_junit, ".md": _as_markdown}
