"""The feed of Slurm's accounting: what is new, once, and ends that no period tells."""

import json
import os
import time
from pathlib import Path

import pytest

from lockstep_ledger.importers.sacct import Selection, SlurmFeed
from lockstep_records.events.event import Event

HEADER = (
    "JobID|User|Account|Partition|State|ExitCode|Submit|Eligible|Start|End|NodeList|AllocTRES|QOS|"
    "Cluster|JobName|"
)
SACCT = """#!/bin/sh
echo "$*" >> "$0.calls"
table=period
for word in "$@"; do [ "$word" = --jobs ] && table=ids; done
while [ "$1" != --delimiter ]; do shift; done
cat "$(dirname "$0")/$table" | sed "s/|/$2/g"
"""
SINFO = (
    "#!/bin/sh\nprintf 'PARTITION|OVERSUBSCRIBE|GRES|CPUS\\ncpu|NO|(null)|64\\n"
    "whole|EXCLUSIVE|gpu:h100:8(S:0-1)|192\\n'\n"
)
NOW = round(time.time()) - 1000


class Slurm:
    """Programs of Slurm that print what a test has written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.sentences = folder, list[str]()
        for name, text in (("sacct", SACCT), ("squeue", "#!/bin/sh\n"), ("sinfo", SINFO)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.write("period")
        self.write("ids")

    def write(self, table: str, *rows: str) -> None:
        (self.folder / table).write_text("\n".join([HEADER, *rows]) + "\n")

    def feed(self, selection: Selection | None = None) -> SlurmFeed:
        chosen, path = selection or Selection(), self.folder / "state.json"
        return SlurmFeed(path, NOW - 3600.0, chosen, self.sentences.append, "east")

    def calls(self) -> str:
        return (self.folder / "sacct.calls").read_text()


@pytest.fixture(name="slurm")
def _slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Slurm(tmp_path)


def row(job: str, state: str, end: object = "Unknown", **columns: object) -> str:
    values = {
        "partition": "gpu", "start": NOW - 90, "node": "n1", "tres": "gres/gpu=8", "name": "a",
        "eligible": NOW - 100,
    } | columns  # fmt: skip
    return (
        f"{job}|ada|llm|{values['partition']}|{state}|0:0|{NOW - 100}|{values['eligible']}|"
        f"{values['start']}|{end}|{values['node']}|{values['tres']}|debug|lab|{values['name']}|"
    )


def kinds(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.job_id, event.kind) for event in events]


def poll(feed: SlurmFeed, now: float = NOW) -> list[Event]:
    events = list(feed.poll(now))
    feed.commit()
    return events


def test_a_poll_sends_what_is_new_and_a_feed_that_starts_again_too(slurm: Slurm) -> None:
    slurm.write("period", row("7", "RUNNING"))
    feed = slurm.feed()
    assert kinds(poll(feed)) == [("7", "job_submitted"), ("7", "job_started")]
    assert poll(feed, NOW + 5) == []
    # Each day it says once what still runs.
    day = 86_400
    times = [[e.time for e in poll(feed, NOW + at)] for at in (day, day + 5, 2 * day)]
    assert times == [[NOW + day], [], [NOW + 2 * day]]
    slurm.write("period", row("7", "COMPLETED", NOW + 7))
    [end] = poll(slurm.feed(), NOW + 10)
    assert (end.kind, end.time, end.fields["outcome"]) == ("job_finished", NOW + 7, "succeeded")


def test_a_period_begins_a_day_before_the_last_poll_in_utc(slurm: Slurm) -> None:
    list(SlurmFeed(slurm.folder / "state.json", 90_000.0, Selection(), print, "east").poll(0.0))
    assert "--starttime=1970-01-01T01:00:00 --endtime=1971-01-02T00:00:00" in slurm.calls()


def test_a_job_that_was_heard_running_is_asked_for_by_its_id_after_days(slurm: Slurm) -> None:
    slurm.write("period", row("7", "RUNNING"))
    poll(slurm.feed())
    slurm.write("period")
    slurm.write("ids", row("7", "TIMEOUT", NOW + 60))
    [end] = poll(slurm.feed(), NOW + 9 * 86_400)
    assert (end.kind, end.time, end.fields["outcome"]) == ("job_finished", NOW + 60, "time_limit")
    assert "--jobs 7" in slurm.calls()
    slurm.write("ids")
    assert poll(slurm.feed(), NOW + 10 * 86_400) == []


def test_a_waiting_job_that_accounting_learns_of_late_is_asked_for_by_its_id(slurm: Slurm) -> None:
    (slurm.folder / "squeue").write_text("#!/bin/sh\necho 7\n")
    assert poll(slurm.feed()) == []
    (slurm.folder / "squeue").write_text("#!/bin/sh\n")
    slurm.write("ids", row("7", "CANCELLED", NOW + 3, start="Unknown", node="None assigned"))
    assert kinds(poll(slurm.feed(), NOW + 5)) == [("7", "job_submitted"), ("7", "job_finished")]


def test_a_job_that_accounting_has_lost_is_named_once_and_not_ended(slurm: Slurm) -> None:
    slurm.write("period", row("7", "RUNNING"))
    feed = slurm.feed()
    poll(feed)
    slurm.write("period")
    assert poll(feed, NOW + 1) == poll(feed, NOW + 2) == []
    assert [sentence for sentence in slurm.sentences if "job 7" in sentence] == [
        "accounting does not know job 7 any more (PurgeJobAfter); its end is not told"
    ]


def test_slurms_later_word_is_told_where_no_start_does(slurm: Slurm) -> None:
    slurm.write("period", row("7", "RUNNING"))
    feed = slurm.feed()
    poll(feed)
    slurm.write("period", row("7", "RUNNING", name="final"))
    [word] = poll(feed, NOW + 5)
    assert (word.kind, word.time, word.fields["name"]) == ("job_submitted", NOW + 5, "final")
    waiting = {"start": "Unknown", "node": "None assigned"}
    slurm.write("period", row("8", "PENDING", **waiting, partition="gpu"))
    poll(feed, NOW + 6)
    slurm.write("period", row("8", "RUNNING", start=NOW + 7, partition="batch"))
    [start] = poll(feed, NOW + 8)
    assert (start.kind, start.fields["queue"]) == ("job_started", "batch")


def test_only_gpu_jobs_of_chosen_partitions_are_fed_and_no_array_that_waits(slurm: Slurm) -> None:
    slurm.write(
        "period", row("7", "RUNNING", partition="cpu", tres="cpu=8"),
        row("8", "RUNNING", partition="other"), row("9_[1-4]", "PENDING"),
        row("9_5", "RUNNING"), row("10+1", "RUNNING"),
    )  # fmt: skip
    events = poll(slurm.feed(Selection(partitions=frozenset({"gpu", "cpu"}))))
    assert {event.job_id for event in events} == {"9_5", "10+1"}
    aliases = {alias for event in events for alias in event.fields["aliases"]}
    assert aliases == {"slurm:lab:9_5", "slurm:lab:10+1"}
    (slurm.folder / "state.json").unlink()
    assert "7" in {event.job_id for event in poll(slurm.feed(Selection(has_cpu_jobs=True)))}


def test_what_never_had_a_node_never_started(slurm: Slurm) -> None:
    never = {"start": NOW - 50, "node": "None assigned"}
    slurm.write(
        "period", row("7", "PREEMPTED", NOW - 60), row("7", "CANCELLED by 0", NOW - 50, **never)
    )
    found = [kind.removeprefix("job_") for _, kind in kinds(poll(slurm.feed()))]
    assert found == ["submitted", "started", "finished", "requeued", "finished"]


def test_an_end_that_is_still_to_come_waits(slurm: Slurm) -> None:
    slurm.write("period", row("7", "COMPLETED", NOW + 30))
    feed = slurm.feed()
    assert ("7", "job_finished") not in kinds(poll(feed))
    assert kinds(poll(feed, NOW + 31)) == [("7", "job_finished")]


def test_a_row_that_a_step_has_made_waits_for_slurmctld(slurm: Slurm) -> None:
    feed, half = slurm.feed(), {"start": NOW - 2, "eligible": "Unknown", "tres": ""}
    slurm.write("period", row("7", "PENDING", **half))
    assert poll(feed) == []
    slurm.write(
        "period", row("7", "COMPLETED", NOW - 1, start=NOW - 2), row("8", "PENDING", **half)
    )
    found = [(event.job_id, event.fields.get("num_gpus")) for event in poll(feed, NOW + 60)]
    assert found == [("7", 8), ("7", 8), ("7", None), ("8", None), ("8", None)]


def test_a_state_that_is_none_is_said_in_one_sentence(slurm: Slurm) -> None:
    (slurm.folder / "state.json").write_text("{}")
    with pytest.raises(ValueError, match="is not the state of a feed"):
        slurm.feed()


def test_a_feed_remembers_no_job_that_ended_long_ago(slurm: Slurm) -> None:
    slurm.write("period", row("7", "COMPLETED", NOW - 50))
    feed = slurm.feed()
    poll(feed)
    slurm.write("period")
    poll(feed, NOW + 3 * 86_400)
    assert json.loads((slurm.folder / "state.json").read_text())["jobs"] == {}
