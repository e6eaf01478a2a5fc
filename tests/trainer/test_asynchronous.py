"""Real ranks that train asynchronously: through a parameter server, and in rounds."""

import json
import os
import signal
from pathlib import Path

import pytest
from servers import wait_until

from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import Page, read_page, read_rows
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.document.steps import document_steps
from lockstep_reports.readers import ReadOptions, read_source
from lockstep_reports.recording.recording import Recording

from .jobs import JOB_ID, TINY, run_ranks, started

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
_SERVER = "--strategy parameter-server"
_ROUNDS = "--strategy local-sgd --round-steps 5"
_DILOCO = f"{_ROUNDS} --outer-momentum 0.9 --outer-learning-rate 0.7"
_STEADY = "--batch 4 --sequence 64 --layers 2 --width 64 --heads 2 --eval-windows 4 --log-every 0"


def page_of(folder: Path, rank: int) -> Page:
    return read_page(page_path(folder, JOB_ID, 0, rank))


def analysis_of(folder: Path) -> StepAnalysis:
    recording = read_source(str(folder / "jobs" / JOB_ID), ReadOptions())
    assert isinstance(recording, Recording)
    return analyse(recording)


def run_learning(memory: Path, strategy: str) -> None:
    """Runs three ranks, which must learn more than the frequencies of bytes."""
    summary_flag = f"--summary {memory / 'summary.json'}"
    shape = "--layers 1 --width 64 --steps 60 --log-every 0"
    outcome = run_ranks(f"{shape} {strategy} {summary_flag}", num_ranks=3, folder=memory)
    assert outcome.codes == (0, 0, 0), outcome.output
    summary = json.loads((memory / "summary.json").read_text())
    assert summary["loss"] < summary["unigram_entropy"]


@pytest.mark.release
def test_ranks_learn_in_rounds_of_diloco(memory: Path) -> None:
    run_learning(memory, _DILOCO)


def test_workers_of_a_server_learn_and_report_exchanges_and_what_these_lacked(memory: Path) -> None:
    run_learning(memory, _SERVER)
    for rank in range(3):
        page = page_of(memory, rank)
        steps = page.state["steps"]
        assert page.periodic["sync_rounds"] == page.periodic["independent_rounds"] == steps + 1
        assert 0 <= page.periodic["staleness_steps"] < 3 * 60
        assert page.periodic["staleness_sum"] > 0
        assert sum(row["phase_seconds"]["sync"] for row in read_rows(page)) > 0


@pytest.mark.timing
def test_a_slow_worker_of_a_server_is_named_and_nobody_waits_for_it(memory: Path) -> None:
    fault = "--fault slow-forward:rank=1,step=31,until=end,delay=60ms"
    outcome = run_ranks(f"{_STEADY} --steps 240 {_SERVER} {fault}", num_ranks=3, folder=memory)
    assert outcome.codes == (0, 0, 0), outcome.output
    pages = [page_of(memory, rank) for rank in range(3)]
    updates = [page.state["steps"] for page in pages]
    assert max(updates) == 240
    assert updates[1] < 0.8 * min(updates[0], updates[2])
    mean = [page.periodic["staleness_sum"] / page.periodic["sync_rounds"] for page in pages]
    assert mean[1] == max(mean)
    analysis = analysis_of(memory)
    assert (analysis.verdict.ranks, analysis.verdict.phase) == ((1,), "forward")
    assert analysis.goodput.seconds["straggler_wait"] == 0
    assert "no other rank waited" in document_steps(analysis).headline


@pytest.mark.timing
def test_a_slow_rank_of_rounds_is_named_and_waited_for_at_the_rounds(memory: Path) -> None:
    fault = "--fault slow-forward:rank=2,step=51,until=end,delay=60ms"
    steps = "--steps 150 --eval-every 0"
    outcome = run_ranks(f"{_STEADY} {steps} {_ROUNDS} {fault}", num_ranks=3, folder=memory)
    assert outcome.codes == (0, 0, 0), outcome.output
    for rank in range(3):
        page = page_of(memory, rank)
        assert page.periodic["sync_rounds"] == 31
        assert (page.periodic["independent_rounds"], page.periodic["staleness_steps"]) == (0, 5)
        waits = {row["step"] % 5 for row in read_rows(page) if row["phase_seconds"]["sync"] > 0}
        assert waits == {0}
    analysis = analysis_of(memory)
    assert (analysis.verdict.ranks, analysis.verdict.phase) == ((2,), "forward")
    assert analysis.steps.round_steps == 5


@pytest.mark.release
@pytest.mark.timing
@pytest.mark.parametrize("strategy", [_SERVER, _ROUNDS])
def test_healthy_asynchronous_ranks_name_nobody(memory: Path, strategy: str) -> None:
    flags = f"{_STEADY} --steps 150 --eval-every 0 {strategy}"
    outcome = run_ranks(flags, num_ranks=3, folder=memory)
    assert outcome.codes == (0, 0, 0), outcome.output
    assert analysis_of(memory).verdict.ranks == ()


@pytest.mark.parametrize("strategy", [_SERVER, pytest.param(_ROUNDS, marks=pytest.mark.release)])
def test_the_others_end_within_the_timeout_when_a_worker_dies(memory: Path, strategy: str) -> None:
    endless = f"{TINY} --steps 1000000 --timeout 5s {strategy}"
    with started(endless, num_ranks=3, folder=memory) as (ranks, log):
        wait_until(lambda: "step 20 " in log.read_text(), 60, log.read_text)
        pid = ranks[2].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for rank in ranks:
            rank.join(30)
        assert [rank.exitcode for rank in ranks][2] == -signal.SIGKILL
        assert None not in [rank.exitcode for rank in ranks], log.read_text()
    assert page_of(memory, 2).periodic["sync_rounds"] > 1
    assert analysis_of(memory).verdict.ranks == ()


def test_workers_of_a_server_stop_by_themselves_after_sigterm(memory: Path) -> None:
    endless = f"{TINY} --steps 1000000 {_SERVER}"
    with started(endless, num_ranks=3, folder=memory) as (ranks, log):
        wait_until(lambda: "step 20 " in log.read_text(), 60, log.read_text)
        ranks[1].terminate()
        for rank in ranks:
            rank.join(30)
        assert [rank.exitcode for rank in ranks] == [75, 75, 75], log.read_text()


def test_local_sgd_resumes_from_a_checkpoint_and_a_server_refuses_one(memory: Path) -> None:
    checkpoints = f"--checkpoint-every 10 --checkpoint-dir {memory / 'saved'}"
    short = f"{TINY} --steps 20 {_ROUNDS} {checkpoints}"
    first = run_ranks(short, num_ranks=2, folder=memory / "a")
    assert first.codes == (0, 0), first.output
    more = f"{TINY} --steps 30 {_ROUNDS} {checkpoints} --resume"
    second = run_ranks(more, num_ranks=2, folder=memory / "b")
    assert second.codes == (0, 0), second.output
    assert "resuming from" in second.output
    refused = run_ranks(f"{TINY} {_SERVER} {checkpoints}", num_ranks=1, folder=memory / "c")
    assert refused.codes == (2,)
    assert "leave it out, or take local-sgd" in refused.output
