"""What other sources say becomes events: MLPerf logs and a trace of spot nodes."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lockstep_ledger.importers.scheduler_events import read_mlperf
from lockstep_outcomes.joblogs.read import read_log
from lockstep_records.events.event import Event, check_event

FIXTURES = Path(__file__).parents[2] / "fixtures"
NOW = 1_900_000_000.0


def checked(events: Iterable[Event]) -> list[Event]:
    """The events, each a valid document, in an order in which no job ends before it starts."""
    found = list(events)
    for event in found:
        assert check_event(event.document(), now_seconds=NOW) == event
    assert len({event.id for event in found}) == len(found)
    return found


def fields_of(events: list[Event], kind: str, **parts: Any) -> dict[str, Any]:
    [event] = [
        event
        for event in events
        if event.kind == kind and all(getattr(event, name) == part for name, part in parts.items())
    ]
    return event.fields


INCIDENTS = {
    "nebius_b200_n4": ("succeeded", None, ()),
    "smc-ac-power__bert": ("failed", "user", ()),
    "Red_Hat": ("failed", "user", ()),
    "Dell": ("succeeded", None, ()),
}


def log(folder: str, name: str) -> Path:
    [path] = [path for path in (FIXTURES / folder).iterdir() if name in path.name]
    return path


@pytest.mark.parametrize("name", INCIDENTS)
def test_an_incident_of_mlperf_is_imported_with_its_truth(name: str) -> None:
    events = checked(read_mlperf(log("mlperf-incidents", name)))
    end = fields_of(events, "job_finished")
    truth = (end["outcome"], end.get("failure_class"), tuple(end["cause_ranks"]))
    assert truth == INCIDENTS[name], end["reason"]
    [started] = [event for event in events if event.kind == "job_started"]
    [finished] = [event for event in events if event.kind == "job_finished"]
    assert finished.time >= started.time
    causes = {"smc-ac-power__bert": "data_error", "Red_Hat": "segfault"}
    assert end["cause"] == causes.get(name, "success")


STEPS = {
    "n304": (2432, 318.0, 3571.4, 273, 12.701),
    "Cisco": (64, None, None, 3430, 0.720),
    "h200_n128": (None, 917.0, None, None, None),
    "n1452": (11616, 832.0, 207.1, None, None),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_run_of_mlperf_is_imported_with_its_times(name: str) -> None:
    ranks, startup_seconds, run_seconds, num_steps, median = STEPS[name]
    path = log("mlperf-steps", name)
    events = checked(read_mlperf(path))
    assert fields_of(events, "job_finished")["outcome"] == "succeeded"
    totals = fields_of(events, "goodput")
    world_size = totals["num_ranks"]
    if ranks is not None:
        assert world_size == ranks
    seconds = {state: value / world_size for state, value in totals["rank_seconds"].items()}
    if startup_seconds is not None:
        assert seconds["startup"] == pytest.approx(startup_seconds, abs=1)
    if run_seconds is not None:
        assert seconds["productive"] == pytest.approx(run_seconds, abs=0.1)
    steps = read_log(path).step_seconds
    if num_steps is not None:
        assert len(steps) == num_steps
        assert sorted(steps)[num_steps // 2] == pytest.approx(median, abs=0.0015)
    begin, end = (next(e.time for e in events if e.kind == kind) for kind in (
        "job_started", "job_finished"))  # fmt: skip
    assert sum(seconds.values()) == pytest.approx(end - begin, abs=0.01)


def test_a_log_without_a_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="no line with a time"):
        list(read_mlperf(path))
