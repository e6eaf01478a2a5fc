import os
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from servers import captured
from trainer_validation.tensors import read_all_tensors

from lockstep_cli.main import group
from lockstep_records.events.event import read_events
from lockstep_records.files.jobs import page_path
from lockstep_records.page.reader import read_page, read_rows
from lockstep_trainer.checkpoints.files import find_newest

from .. import jobs
from ..jobs import JOB_ID, Outcome, run_launcher, run_ranks

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(150)]

STEPS = 8
TINY = (
    f"{jobs.TINY} --steps {STEPS} --checkpoint-every 4 --stop-check-every 1 --timeout 20s "
    "--checkpoint-dir"
)


def run_torchrun(arguments: str, *, folder: Path) -> Outcome:
    command = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 1"
    done = captured(
        [sys.executable, *command.split(), "-m", "lockstep_trainer", *arguments.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1", "LOCKSTEP_DIR": str(folder)},
        timeout=120,
    )
    return Outcome(codes=(done.returncode,), output=done.stdout + done.stderr)


def final_state(checkpoints: Path) -> dict[str, torch.Tensor]:
    newest, reasons = find_newest(checkpoints)
    assert newest is not None
    assert (newest.step, reasons) == (STEPS, [])
    return read_all_tensors(newest.path)


def assert_same(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def uninterrupted(module_memory: Path) -> dict[str, torch.Tensor]:
    folder = module_memory / "uninterrupted"
    outcome = run_ranks(f"{TINY} {folder / 'saved'}", num_ranks=2, folder=folder)
    assert outcome.codes == (0, 0), outcome.output
    return final_state(folder / "saved")


@pytest.mark.parametrize(
    "launcher", ["lockstep train", pytest.param("torchrun", marks=pytest.mark.release)]
)
def test_a_job_with_a_killed_rank_starts_again_and_ends_with_the_same_bits(
    memory: Path, uninterrupted: dict[str, torch.Tensor], launcher: str
) -> None:
    arguments = f"{TINY} {memory / 'saved'} --fault kill:rank=1,step=7"
    if launcher == "torchrun":
        outcome = run_torchrun(arguments, folder=memory)
    else:
        outcome = run_launcher(f"--max-restarts 1 {arguments}", folder=memory)
    assert outcome.codes == (0,), outcome.output
    assert "resuming from" in outcome.output
    assert "step-00000004" in outcome.output
    assert outcome.output.count("fault: kill rank=1 step=7\n") == 1
    if launcher == "lockstep train":
        events = read_events(memory / "jobs" / JOB_ID)
        (first,) = [event for event in events if event.fields.get("first")]
        assert (first.fields["signal"], first.fields["rank"], first.attempt) == ("SIGKILL", 1, 0)
        ended = [e.fields["outcome"] for e in events if e.kind == "attempt_ended"]
        assert ended == ["failed", "succeeded"]
        killed, again = (read_page(page_path(memory, JOB_ID, n, 1)) for n in range(2))
        assert [row["step"] for row in read_rows(killed)] == list(range(1, 7))
        assert (again.phase, again.state["steps"]) == ("done", STEPS - 4)
    assert_same(final_state(memory / "saved"), uninterrupted)


@pytest.mark.parametrize(
    "fault", ["preempt", pytest.param("preempt-job", marks=pytest.mark.release)]
)
def test_a_preempted_job_saves_leaves_and_resumes_to_the_same_bits(
    memory: Path, uninterrupted: dict[str, torch.Tensor], fault: str
) -> None:
    saved = memory / "saved"
    arguments = f"{TINY} {saved} --checkpoint-async --fault {fault}:rank=1,step=6"
    if fault == "preempt-job":
        outcome = run_launcher(arguments, folder=memory)
        events = read_events(memory / "jobs" / JOB_ID)
        assert events[-1].fields["outcome"] == "preempted"
        codes = {event.fields["exit_code"] for event in events if event.kind == "rank_ended"}
        assert codes == {*outcome.codes}
    else:
        outcome = run_ranks(arguments, num_ranks=2, folder=memory)
    assert {*outcome.codes} == {75}, outcome.output
    assert outcome.output.count(f"fault: {fault} rank=1 step=6\n") == 1
    newest, _ = find_newest(saved)
    assert newest is not None
    assert 6 <= newest.step < STEPS
    assert f"stopped as requested, after step {newest.step}" in outcome.output
    resumed = run_ranks(f"{TINY} {saved} --resume", num_ranks=2, folder=memory / "resumed")
    assert resumed.codes == (0, 0), resumed.output
    assert_same(final_state(saved), uninterrupted)


@pytest.mark.release
def test_a_run_resumes_with_another_number_of_ranks_and_the_same_global_batch(
    memory: Path, uninterrupted: dict[str, torch.Tensor]
) -> None:
    saved = memory / "saved"
    killed = "--strategy fsdp2 --batch 1 --fault kill:rank=3,step=7"
    first = run_ranks(f"{TINY} {saved} {killed}", num_ranks=4, folder=memory / "four")
    assert 0 not in first.codes
    command = ["train", "--dir", str(memory), *f"{TINY} {saved} --resume".split()]
    refused = CliRunner().invoke(group, command)
    assert refused.exit_code == 2
    sentence = "was written with global_batch 4 and this run has 2"
    assert sentence in " ".join(refused.stderr.split())
    single = run_ranks(f"{TINY} {saved} --resume --batch 4", folder=memory / "single")
    assert single.codes == (0,), single.output
    state = final_state(saved)
    for name, tensor in uninterrupted.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=1e-4)
