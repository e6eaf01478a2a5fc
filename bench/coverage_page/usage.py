"""Which rules and panels read each series, by the generated files; and why some have none."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lockstep_catalogue import (
    METRICS,
    RECORDED,
    Metric,
    Recorded,
    fabric,
    job_state,
    job_watch,
    ledger,
    ledger_service,
    recorded_objectives,
    training,
)

_REPOSITORY = Path(__file__).parents[2]
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")

UNREAD: Mapping[Metric, str] = {
    training.JOB_INFO: "inventory: joined by hand to find the project, queue and class of a job",
    training.SAMPLES: "tokens are the rate that is promised; samples are for jobs without tokens",
    training.COLLECTIVES: "the number of collectives explains their seconds in an investigation",
    job_state.NONFINITE_VALUES: "says which value was not finite, once the page has come",
    job_state.MEMORY_BYTES: "the report and the runbooks of memory read it",
    job_state.ALLOCATOR_RETRIES: "explains a slow step in an investigation",
    job_state.COLLECTIONS: "explains a slow step in an investigation",
    job_state.COLLECTION_SECONDS: "explains a slow step in an investigation",
    job_state.CHECKPOINT_BYTES: "size of checkpoints, for the planning of storage",
    job_state.CHECKPOINTS_VERIFIED: "invalid ones are paged; this says how many were looked at",
    job_state.SLOWEST_WRITER: "names the writer, once a checkpoint is late",
    job_state.PASSED_OVER: "restores that fall back are paged; this says over how many",
    job_state.LOST_STEPS: "the ledger counts the GPU time of what was lost",
    job_state.REPLICAS: "says how many ranks the comparison covers",
    job_state.TROUBLES: "problems around the monitor are counted, for reports of errors",
    job_watch.HUNG_RANKS: "ranks that hang are named by the series that the page reads",
    job_watch.BUS_BYTES: "the rate over it is what is judged",
    job_watch.HOST_BOUND_SECONDS: "the goodput state host_bound holds the same seconds",
    job_watch.DEVICE_STEPS: "says how many steps the device's times cover",
    job_watch.LAUNCH_BOUND_STEPS: "explains host_bound in an investigation",
    fabric.NET_CARRIER_CHANGES: "the agent's verdict on a port counts them",
    ledger.JOBS_FINISHED: "objectives read the exact counts per window; this is for other boards",
    ledger.JOBS_FINISHED_GPU_SECONDS: "as the jobs, weighted; for other boards",
    ledger.ATTEMPTS_STARTED: "objectives read the exact counts per window",
    ledger.COST: "the review of the week and the pages of the ledger show it",
    ledger.DEADLINES: "objectives read the exact counts per window",
    ledger.REQUEUES: "objectives read the exact counts per window; a runbook asks it by cause",
    ledger.CHECKPOINTS: "objectives read the exact counts per window",
    ledger.JOB_DURATION: "the review of the week shows it by class",
    ledger_service.LEDGER_INFO: "inventory: version and store of the ledger",
    ledger_service.EVENTS: "what is refused is a ticket; what is stored is only traffic",
    ledger_service.EVENTS_STORED: "the number of the newest event, for followers of the ledger",
}
"""Metrics that neither a rule nor a board reads, each with the reason."""

# Sloth's public names, for its boards; and the aggregate of counters, read where an objective over
# a counter has alerts.
_SLOTH_LEVEL = "slo"
_FOR_OTHERS = (recorded_objectives.COUNTER_TOTAL, recorded_objectives.COUNTER_BAD)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a board, and the words of its queries."""

    board: str
    title: str
    words: frozenset[str]


def _panels(panels: list[dict[str, Any]], board: str) -> Iterator[Panel]:
    for panel in panels:
        queries = " ".join(str(target.get("expr", "")) for target in panel.get("targets", ()))
        yield Panel(board, panel.get("title", ""), frozenset(_WORD.findall(queries)))
        yield from _panels(panel.get("panels", []), board)


@cache
def panels() -> tuple[Panel, ...]:
    """Every panel of the generated boards."""
    boards = sorted((_REPOSITORY / "dashboards/generated").glob("*.json"))
    return tuple(
        panel
        for path in boards
        for panel in _panels(json.loads(path.read_text(encoding="utf-8"))["panels"], path.stem)
    )


@cache
def rules() -> Mapping[str, frozenset[str]]:
    """The words of each rule's expression and annotations, by the name of the rule."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted((_REPOSITORY / "alerts/generated").glob("*.rules.yaml")):
        for group in yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                name = rule.get("alert") or rule["record"]
                text = f"{rule['expr']} {rule.get('annotations', {}).get('description', '')}"
                found[name] = found.get(name, frozenset()) | set(_WORD.findall(text))
    return found


def _names(series: Metric | Recorded) -> set[str]:
    return {series.name, *(series.sample_names if isinstance(series, Metric) else ())}


def panels_of(series: tuple[Metric | Recorded, ...]) -> list[Panel]:
    """The panels that read one of the series."""
    names = set().union(*map(_names, series))
    return [panel for panel in panels() if names & panel.words]


def rules_of(series: Metric | Recorded) -> list[str]:
    """The rules that read the series."""
    return [name for name, words in rules().items() if _names(series) & words]


def unread() -> list[Metric]:
    """Metrics that no rule and no panel reads."""
    return [m for m in METRICS if not rules_of(m) and not panels_of((m,))]


def unread_records() -> list[Recorded]:
    """Recorded series that no rule and no panel reads."""
    return [
        each
        for each in RECORDED
        if each not in _FOR_OTHERS and each.level != _SLOTH_LEVEL
        if not rules_of(each) and not panels_of((each,))
    ]
