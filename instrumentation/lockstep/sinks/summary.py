"""A child of the launcher: writes the job's summary into one sink, once a minute and at the end."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import click

from lockstep.sidecar import rounds
from lockstep_records.files.jobs import list_attempts, pages_of
from lockstep_records.page.replicas import counts_data

_INTERVAL_SECONDS = 60.0
_REPORT_SECONDS = 50.0  # less than the minute between two rounds
_NUMBER_SUFFIXES = ("_seconds", "_ratio", "_money", "world_size")
_DATA_SUMS = ("tokens", "samples")
_LATEST = ("loss", "gradient_norm", "learning_rate")


class SinkError(RuntimeError):
    """A sink cannot be written; the text gives the reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A job at one moment.

    Attributes:
        numbers: by name; a name ends in its unit; an unknown number is absent.
        facts: headline, severity, verdict, phase, cause, ranks and outcome: short texts; what is
            unknown is absent.
    """

    job_id: str
    step: int
    numbers: Mapping[str, float]
    facts: Mapping[str, str] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()


class Sink(Protocol):
    """A destination of summaries."""

    def put(self, summary: Summary, *, last: bool) -> None:
        """Writes a summary, ``last`` at the end of the job; or SinkError."""
        ...


def read_summary(job: Path) -> Summary | None:
    """The summary of a job; None as long as there is nothing to report on."""
    # By its command, for instrumentation does not import the reports.
    command = [sys.executable, "-P", "-m", "lockstep_cli.main", "report", str(job), "--json", "-"]
    try:
        result = subprocess.run(command, capture_output=True, check=True, timeout=_REPORT_SECONDS)
        report = json.loads(result.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None
    verdict = report["verdict"]
    facts = {
        "headline": report["headline"],
        "severity": report["severity"],
        "verdict": verdict["kind"],
        "phase": verdict["phase"],
        "cause": verdict["cause"],
        "ranks": ", ".join(str(rank) for rank in verdict["ranks"]),
        "outcome": report["outcome"],
    }
    return Summary(
        job_id=job.name,
        step=report["steps"]["last"] or 0,
        numbers={**dict(_flatten("", report)), **_read_page_numbers(job)},
        facts={name: text for name, text in facts.items() if text},
        evidence=tuple(verdict["evidence"]),
    )


def _flatten(prefix: str, report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers of the report's top level and of its steps and goodput, without times of day."""
    for name, value in report.items():
        if not prefix and name in {"steps", "goodput"}:
            yield from _flatten(f"{name}/", value)
        elif isinstance(value, int | float) and (prefix or name.endswith(_NUMBER_SUFFIXES)):
            yield prefix + name, value


def _read_page_numbers(job: Path) -> dict[str, float]:
    """Counts of all ranks and attempts, and the latest loss and rates of the first rank."""
    pages = [page for attempt in list_attempts(job) for page in pages_of(attempt)]
    if not pages:
        return {}
    of_data = [page for page in pages if counts_data(page.identity["mesh"])]
    sums: dict[str, float] = {
        name: sum(page.state[name] for page in of_data) for name in _DATA_SUMS
    }
    sums["nonfinite_steps"] = sum(page.state["nonfinite_steps"] for page in pages)
    newest = max(pages, key=lambda page: (page.identity["attempt"], -page.identity["rank"]))
    latest = ((name, newest.state[name]) for name in _LATEST)
    return sums | {name: value for name, value in latest if value is not None}


def main(sink: str, target: str, job: Path, interval_seconds: float = _INTERVAL_SECONDS) -> None:
    """Writes until the job is over; a failure is printed once and the next round tries again."""
    open_sink: Sink | None = None
    printed = ""
    for is_last in rounds(interval_seconds):
        summary = read_summary(job)
        if summary is None:
            continue
        try:
            # Loads the library of this sink only.
            if open_sink is None:
                open_sink = import_module(f"lockstep.sinks.{sink}").open_sink(job.name, target)
            open_sink.put(summary, last=is_last)
        except (SinkError, OSError) as error:
            if str(error) != printed:
                click.echo(f"lockstep: the summary to {sink} failed: {error}", err=True)
            printed = str(error)


if __name__ == "__main__":
    # The module of the name by which sinks import it: they raise its error.
    import_module("lockstep.sinks.summary").main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
