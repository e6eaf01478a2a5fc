"""The launcher says when a hang has ended: an event, once the ranks move again."""

import shutil
import tempfile
import time
from pathlib import Path

from lockstep.hangs.node_watch import _NodeWatch
from lockstep_outcomes.progress.hang_events import hangs_of
from lockstep_outcomes.progress.hangs import HangTimeouts
from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.page.layout import PHASES, SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity


def test_the_end_of_a_hang_is_an_event_once_the_ranks_move_again() -> None:
    root = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/dev/shm"))
    pages: list[PageWriter] = []
    try:
        for rank, phase in enumerate(("sync", "data")):
            identity = RankIdentity(job_id="job-a", rank=rank, world_size=2)
            page = PageWriter(page_path(root, "job-a", 0, rank), identity, rows=4)
            page.signed[SLOT.word("step")] = 7
            page.words[SLOT.word("present")] |= SLOT.presence["step"]
            page.heartbeat(time.monotonic_ns(), PHASES.index(phase))
            page.commit(time.monotonic_ns())
            pages.append(page)
        job = job_folder(root, "job-a")
        watch = _NodeWatch(job, "job-a", HangTimeouts(step_seconds=60.0))
        later_ns = time.monotonic_ns() + 100 * 10**9
        for _ in range(2):
            watch.poll(later_ns)
        assert [event.kind for event in read_events(job)] == ["hang"]
        for page in pages:
            page.heartbeat(later_ns, PHASES.index("forward"))
        watch.poll(later_ns)
        watch.poll(later_ns)
        (hang,) = hangs_of(read_events(job), 0)
        assert [event.kind for event in read_events(job)] == ["hang", "hang_ended"]
        assert hang.end is not None
        assert hang.missing == (1,)
    finally:
        for page in pages:
            page.close()
        shutil.rmtree(root, ignore_errors=True)
