"""What one late event costs: how many stored events the writer reads again, and how many spans."""

from typing import Any

import pytest
from sqlalchemy import Engine, event

from lockstep_ledger.merge import spans
from lockstep_ledger.store import job_work
from lockstep_ledger.store.transaction import Submission
from lockstep_ledger.store.writer import StoreWriter

from ..model.stored import differences
from ..stories import BEGIN, Story, checked
from .open_writer import opened

_MINUTES = 30


class _Reads:
    """Counts the stored events that are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        read = job_work.event_of_row

        def count(*arguments: Any) -> Any:
            self.number += 1
            return read(*arguments)

        monkeypatch.setattr(job_work, "event_of_row", count)

    def of(self, writer: StoreWriter, story: Story) -> int:
        self.number = 0
        writer.write([Submission(checked(story))])
        return self.number


def write_job(writer: StoreWriter, num_nodes: int, restarts: int = 0) -> None:
    """A job whose nodes report every minute; each run of half an hour is of another start."""
    nodes = [f"n{number}" for number in range(num_nodes)]
    writer.write([Submission(checked(Story().add("job_started", None, num_gpus=8 * num_nodes)))])
    for run in range(restarts + 1):
        begin = BEGIN + run * 3600
        for minute in range(_MINUTES + 1):
            stories = []
            for node in nodes:
                story = Story(now=begin + 60 * minute)
                if minute == 0:
                    story.start(node, run, num_nodes=num_nodes)
                totals = {"productive": 480.0 * minute}
                stories.append(story.add("goodput", node, run, rank_seconds=totals, num_ranks=8))
            writer.write([Submission(checked(story)) for story in stories])


LATE = {
    "a report": Story(now=BEGIN + 90).add("goodput", "n1", rank_seconds={}, num_ranks=8),
    "an end": Story(now=BEGIN + 95).add("attempt_ended", "n1", outcome="failed"),
    "a start": Story(now=BEGIN + 96).add("attempt_started", "n1", attempt=1),
}


@pytest.mark.parametrize("name", LATE)
@pytest.mark.parametrize(
    "num_nodes", [3, pytest.param(1000, marks=(pytest.mark.release, pytest.mark.timeout(600)))]
)
def test_a_late_event_of_a_node_reads_no_event_of_another(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, num_nodes: int, name: str
) -> None:
    with opened(str(tmp_path / "ledger.db")) as writer:
        write_job(writer, num_nodes)
        reads = _Reads(monkeypatch)
        # Two starts, a report at the start and one a minute, and the late event itself.
        assert reads.of(writer, LATE[name]) == 2 + 1 + _MINUTES + 1


def test_a_delivery_of_many_checkpoints_asks_the_store_once(tmp_path: Any) -> None:
    kinds: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "marks" in statement:
            kinds.append(statement.partition(" ")[0])

    with opened(str(tmp_path / "ledger.db")) as writer:
        write_job(writer, 1)
        event.listen(Engine, "before_cursor_execute", note)
        try:
            story = Story(now=BEGIN + 100)
            for step in range(300):
                story.add("checkpoint_durable", "n0", step=step)
            writer.write([Submission(checked(story))])
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    # One read tells which are new, one statement writes them.
    assert sorted(kinds) == ["INSERT", "SELECT"]


def test_spans_before_a_late_event_are_not_read_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(dsn) as writer:
        write_job(writer, 2, restarts=4)
        reads = _Reads(monkeypatch)
        late = Story(now=BEGIN + 4 * 3600 + 90)
        late.add("goodput", "n1", 4, rank_seconds={"productive": 700.0}, num_ranks=8)
        # Those of the last span, and the last of the span before.
        assert reads.of(writer, late) == 2 + 1 + _MINUTES + 1 + 1
        assert differences(writer._engine) == []


def test_a_start_beyond_the_most_spans_of_a_job_is_a_dead_letter(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "MAX_SPANS", 4)
    with opened(dsn) as writer:
        for node in range(6):
            sent = Submission(checked(Story(now=BEGIN + node).start(f"n{node}")))
            writer.write([sent])
            assert [letter.refusal for letter in sent.refused] == ["implausible"] * 2 * (node > 3)
        assert "start a new job id" in sent.refused[0].reason
        end = Submission(checked(Story(now=BEGIN + 99).end(node="n2")))
        writer.write([end])
        assert end.refused == []
