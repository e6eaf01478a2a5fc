"""What a sink is told of a job: numbers by name, and the verdict in words."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lockstep_records.jobs import list_attempts, list_pages
from lockstep_records.page.reader import Page, PageError, read_page

_REPORT_SECONDS = 50.0
_WANTED = ("_seconds", "_ratio", "_money", "world_size")
_SUMS = ("tokens", "samples", "nonfinite_steps")
_LAST_TOLD = ("loss", "gradient_norm", "learning_rate")


class SinkError(RuntimeError):
    """A sink cannot be written; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A job at one moment.

    Attributes:
        step: last step that is known.
        numbers: by name; the units end the names; what is unknown is absent.
        facts: verdict, phase, cause, ranks, outcome: short texts, absent where there is none.
        evidence: the sentences that the verdict stands on.
    """

    job_id: str
    step: int
    numbers: Mapping[str, float]
    facts: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()


class Sink(Protocol):
    """Somewhere to write summaries."""

    def put(self, summary: Summary, *, last: bool) -> None:
        """Writes a summary; the last one is told as such.

        Raises:
            SinkError: it cannot be written.
        """
        ...


def read_summary(job: Path) -> Summary | None:
    """The summary of a job; None as long as there is nothing to report on.

    The verdict is that of ``lockstep report``, asked as anybody asks it: by its command.
    """
    command = [sys.executable, "-m", "lockstep_cli.main", "report", str(job), "--json", "-"]
    try:
        asked = subprocess.run(command, capture_output=True, check=True, timeout=_REPORT_SECONDS)
        report = json.loads(asked.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None
    verdict = report["verdict"]
    facts = {
        "verdict": verdict["kind"],
        "phase": verdict["phase"],
        "cause": verdict["cause"],
        "ranks": ", ".join(str(rank) for rank in verdict["ranks"]),
        "outcome": report["outcome"],
    }
    return Summary(
        job_id=job.name,
        step=report["steps"]["last"] or 0,
        numbers={**dict(_numbers("", report)), **_of_pages(job)},
        facts={name: text for name, text in facts.items() if text},
        evidence=tuple(verdict["evidence"]),
    )


def _numbers(above: str, told: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers of the report's top and of its steps and goodput; times of the day are left out."""
    for name, value in told.items():
        if not above and name in {"steps", "goodput"}:
            yield from _numbers(f"{name}/", value)
        elif isinstance(value, int | float) and (above or name.endswith(_WANTED)):
            yield above + name, value


def _of_pages(job: Path) -> dict[str, float]:
    """What the ranks have counted over all attempts, and what the newest first rank told last."""
    pages = [page for attempt in list_attempts(job) for page in _readable(attempt)]
    if not pages:
        return {}
    told: dict[str, float] = {name: sum(page.state[name] for page in pages) for name in _SUMS}
    newest = max(pages, key=lambda page: (page.identity["attempt"], -page.identity["rank"]))
    known = ((name, newest.state[name]) for name in _LAST_TOLD)
    return told | {name: value for name, value in known if value is not None}


def _readable(attempt: Path) -> Iterator[Page]:
    for path in list_pages(attempt):
        try:
            yield read_page(path)
        except PageError:
            continue
