"""Ranks that stand out by load or memory, and fingerprints that nodes can be compared by."""

from pathlib import Path

import pytest

from lockstep_agent.collectors.jobs.newest_steps import NewestSteps, waits_of_step
from lockstep_agent.jobs.page_store import PageStore
from lockstep_agent.jobs.readings import fingerprint_readings, out_of_memory_readings
from lockstep_catalogue import training
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.layout import EXTRAS, PERIODIC
from lockstep_records.page.reader import Page, read_page

from ..live_page import LivePage

NODE = ("east", "job", "node-7")
DEAD_PID = 0x7FFFFFFF


def rows(page: LivePage, number: int, tokens: int, *, longest: int = 0) -> None:
    """So many steps of a rank with these tokens each, and a longest sequence where it is given."""
    for step in range(number):
        if longest:
            page.writer.add_to_row("sequence_max", longest)
            page.writer.add_to_row("sequence_squares", longest**2)
        page.writer.append(step=step, start_ns=step, seconds=1.0, tokens=tokens, samples=2)
    page.commit()


def loads(root: Path) -> dict[tuple[str, ...], object]:
    collector = NewestSteps(PageStore(root, Path("/proc"), cluster="east"), "node-7")
    return {
        (reading.metric.name, *reading.labels[3:]): reading.value for reading in collector.collect()
    }


def read(page: LivePage) -> Page:
    page.commit()
    page.writer.periodic.commit(1)
    return read_page(page.path)


def test_the_heaviest_rank_stands_beside_the_median(root: Path) -> None:
    for rank, tokens in enumerate((100, 100, 250, 100)):
        rows(LivePage(root, rank=rank), 8, tokens)
    values = loads(root)
    assert values[training.HEAVIEST_LOAD.name, "2", "tokens"] == 250
    assert values[training.MEDIAN_LOAD.name, "tokens"] == 100
    assert values[training.HEAVIEST_LOAD.name, "0", "samples"] == 2
    assert not [key for key in values if "squares" in key]


def test_lengths_of_sequences_are_a_load_where_they_are_reported(root: Path) -> None:
    for rank, longest in enumerate((30, 50)):
        rows(LivePage(root, rank=rank), 3, 100, longest=longest)
    values = loads(root)
    assert values[training.HEAVIEST_LOAD.name, "1", "longest_sequence"] == 50
    assert values[training.MEDIAN_LOAD.name, "squares"] == (900 + 2500) / 2


def step_row(sync: float, work: float, **more: float) -> dict[str, object]:
    """A row of a step: work in forward, and whatever else is named by phase or by extra."""
    phases = dict.fromkeys(STEP_PHASES, 0.0) | {"forward": work, "sync": sync}
    extras = dict.fromkeys(EXTRAS)
    return {
        "phase_seconds": phases | {name: more[name] for name in more if name in phases},
        "extras": extras | {name: more[name] for name in more if name in extras},
    }


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (step_row(0.01, 0.3), {"forward": 0.6}),
        (step_row(0.01, 0.3, stopped_seconds=0.2), {"stopped": 0.6}),
        (step_row(0.01, 0.3, collection_seconds=0.1), {"collector": 0.3, "forward": 0.3}),
        (step_row(0.01, 0.1, eval=0.2), {"eval": 0.6}),
        (step_row(0.01, 0.1), {"unknown": 0.6}),
    ],
)
def test_what_ranks_waited_belongs_to_what_the_last_one_had_more_of(
    last: dict[str, object], expected: dict[str, float]
) -> None:
    rows = [step_row(0.21, 0.1), last, step_row(0.21, 0.1), step_row(0.21, 0.1)]
    assert waits_of_step(rows) == pytest.approx(expected)


def test_waits_are_counted_when_another_rank_is_late_each_time(root: Path) -> None:
    pages = [LivePage(root, rank=rank) for rank in range(4)]
    collector = NewestSteps(PageStore(root, Path("/proc"), cluster="east"), "node-7")
    totals = []
    for step in range(8):
        for rank, page in enumerate(pages):
            is_late = step % 4 == rank
            if is_late:
                page.writer.add_to_row("collection_seconds", 0.3)
            phases = {"forward": 0.4 if is_late else 0.1, "sync": 0.01 if is_late else 0.31}
            row = [phases.get(phase, 0.0) for phase in STEP_PHASES]
            page.writer.append(step=step, start_ns=step, seconds=0.41, phase_seconds=row)
            page.commit()
        (waited,) = [r for r in collector.collect() if r.metric is training.WAITED_SECONDS]
        assert waited.labels == (*NODE, "collector")
        totals.append(waited.value)
    assert totals == pytest.approx([0.9 * number for number in range(1, 9)])


def test_a_job_without_a_running_rank_has_no_load(root: Path) -> None:
    page = LivePage(root)
    rows(page, 3, 100)
    page.replace_identity(pid=DEAD_PID)
    assert loads(root) == {}


def test_only_ranks_that_ran_out_of_memory_have_a_series(root: Path) -> None:
    pages = [LivePage(root, rank=rank) for rank in range(3)]
    pages += [LivePage(root, rank=rank, attempt=1) for rank in range(3)]
    for page in (pages[1], pages[4]):
        page.writer.periodic.count("out_of_memory")
    readings = list(out_of_memory_readings(NODE, [read(page) for page in pages]))
    assert [(reading.labels[3:], reading.value) for reading in readings] == [(("1",), 2)]


def fingerprint(page: LivePage, step: int, parameters: int) -> Page:
    periodic = page.writer.periodic
    number = periodic.words[PERIODIC.word("fingerprints")]
    periodic.signed[PERIODIC.word("fingerprint_step") + number] = step
    periodic.words[PERIODIC.word("fingerprint_parameters") + number] = parameters
    periodic.count("fingerprints")
    return read(page)


def fingerprints(pages: list[Page]) -> dict[tuple[str, ...], float]:
    return {
        (reading.metric.name, *reading.labels[3:]): reading.value
        for reading in fingerprint_readings(NODE, pages)
    }


def test_nodes_with_the_same_parameters_have_the_same_fingerprint(root: Path) -> None:
    ranks = [LivePage(root, rank=rank, world_size=8) for rank in range(6)]
    for step in (100, 200):
        pages = [fingerprint(page, step, step + (page is ranks[5])) for page in ranks]
    here, elsewhere, corrupt = (fingerprints(pages[at : at + 2]) for at in (0, 2, 4))
    assert here == elsewhere
    assert here[training.FINGERPRINT_STEP.name, "all"] == 200
    assert fingerprints(pages[5:]) != here
    assert corrupt.keys() == here.keys()


def test_the_fingerprint_is_that_of_the_newest_step_that_all_ranks_have(root: Path) -> None:
    early, late = (LivePage(root, rank=rank) for rank in range(2))
    fingerprint(late, 100, 5)
    pages = [fingerprint(early, 100, 5), fingerprint(late, 200, 6)]
    assert fingerprints(pages)[training.FINGERPRINT_STEP.name, "all"] == 100


def test_parts_of_the_model_are_compared_apart_and_without_replicas_not_at_all(root: Path) -> None:
    stages = [
        LivePage(root, rank=rank, mesh=(("dp", 0), ("pp", rank)), world_size=4) for rank in range(2)
    ]
    parts = fingerprints([fingerprint(page, 100, 5) for page in stages])
    assert {key[1] for key in parts} == {"pp=0", "pp=1"}
    shard = LivePage(root, rank=2, mesh=(("fsdp", 2),))
    assert fingerprints([fingerprint(shard, 100, 5)]) == {}
