"""The launcher: outcomes of its workers, folders of jobs, environment of the ranks."""

import os
from pathlib import Path
from typing import Any

import click
import pytest

from lockstep.launch.description import WorkersEnd, judge_end
from lockstep.launch.job import Job
from lockstep.launch.run import _exit_status, _print_outcome, _worker_environment, claim_job, launch
from lockstep.telemetry.logs import SWITCH
from lockstep_records.events.event import PREEMPTED, Event, append_event
from lockstep_records.files.jobs import page_path
from lockstep_records.files.spans import trace_of
from lockstep_records.page.writer import PageWriter, RankIdentity


@pytest.mark.parametrize(
    ("exit_codes", "signal_number", "expected"),
    [
        ((0, 0), None, ("succeeded", 0)),
        ((0, 1), None, ("failed", 1)),
        ((-9, -15), None, ("failed", 1)),
        ((-15, -15), None, ("failed", 1)),
        ((2, -15), None, ("failed", 2)),
        ((2, 2), None, ("failed", 2)),
        ((2, 0), None, ("failed", 2)),
        ((2, 1), None, ("failed", 1)),
        ((2, -9), None, ("failed", 1)),
        ((PREEMPTED, PREEMPTED), None, ("preempted", PREEMPTED)),
        ((PREEMPTED, PREEMPTED), 15, ("preempted", PREEMPTED)),
        ((PREEMPTED, 0), 15, ("preempted", PREEMPTED)),
        ((PREEMPTED, 1), None, ("failed", 1)),
        ((-15, -15), 15, ("cancelled", 143)),
        ((-15, -15), 2, ("cancelled", 130)),
        ((PREEMPTED, -9), 15, ("cancelled", 143)),
        ((), 15, ("cancelled", 143)),
    ],
)
def test_outcome_and_exit_status_follow_from_the_exit_codes_of_the_workers(
    exit_codes: tuple[int, ...],
    signal_number: int | None,
    expected: tuple[str, int],
    tmp_path: Path,
) -> None:
    for rank, code in enumerate(exit_codes):
        fields = {"rank": rank, "exit_code": code, "first": False}
        event = Event(kind="rank_ended", job_id="new", attempt=0, fields=fields, time=100.0)
        append_event(tmp_path, event)
    end = WorkersEnd(attempt=0, exit_codes=exit_codes, signal_number=signal_number, stop_time=99.0)
    outcome = judge_end(tmp_path, end)["outcome"]
    assert (outcome, _exit_status(exit_codes, signal_number)) == expected


def new_job(root: Path, job_id: str = "new", **flags: bool) -> Job:
    return Job(program=("-m", "this"), root=root, job_id=job_id, **flags)  # type: ignore[arg-type]  # only flags


def write_events(folder: Path, *kinds: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        append_event(folder, Event(kind=kind, job_id=folder.name, attempt=0))


def test_the_newest_twenty_finished_jobs_stay_and_all_running_ones(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    running = [f"a{number:02}" for number in range(3)]
    finished = [f"b{number:02}" for number in range(23)]
    for name in running:
        write_events(jobs / name, "job_started")
    for name in finished:
        write_events(jobs / name, "job_started", "job_finished")
    with claim_job(new_job(tmp_path), {}) as first_attempt:
        assert first_attempt == 0
    assert sorted(path.name for path in jobs.iterdir()) == [*running, *finished[3:], "new"]


def test_a_job_id_is_in_use_while_its_launcher_runs_and_counts_on_after(tmp_path: Path) -> None:
    job = new_job(tmp_path)
    for attempt in range(3):
        with claim_job(job, {}) as first_attempt:
            assert first_attempt == attempt
            with pytest.raises(
                ValueError, match=r"job id 'new' is in use .*launcher \(process \d+"
            ):
                claim_job(job, {}).__enter__()
            fields = {"outcome": "preempted"}
            for kind in ("attempt_started", "attempt_ended", "job_finished"):
                append_event(
                    job.folder, Event(kind=kind, job_id="new", attempt=attempt, fields=fields)
                )


def test_a_job_id_is_in_use_while_one_of_its_ranks_runs(root: Path) -> None:
    job = new_job(root)
    identity = RankIdentity(job_id="new", rank=0, world_size=1)
    page = PageWriter(page_path(root, "new", 0, 0), identity, rows=4)
    with pytest.raises(ValueError, match=r"in use .*its rank 0 \(process \d+\) still runs"):
        claim_job(job, {}).__enter__()
    page.close()
    with claim_job(job, {}) as first_attempt:
        assert first_attempt == 1


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 0),
        ({"SLURM_RESTART_COUNT": "2"}, 2),
        ({"LOCKSTEP_RESTART_COUNT": "3", "SLURM_RESTART_COUNT": "2"}, 3),
        ({"SLURM_RESTART_COUNT": "two"}, 0),
    ],
)
def test_a_node_without_earlier_pages_counts_on_by_the_scheduler(
    tmp_path: Path, environment: dict[str, str], expected: int
) -> None:
    with claim_job(new_job(tmp_path), environment) as first_attempt:
        assert first_attempt == expected


def test_a_folder_that_cannot_be_created_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "jobs").write_text("no folder")
    with pytest.raises(ValueError, match=r"cannot be created \(.*\); set LOCKSTEP_DIR"):
        claim_job(new_job(tmp_path), {}).__enter__()


def test_workers_inherit_the_job_and_the_environment_of_the_launcher_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CLUSTER", "mine")
    recorder = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    for name in ("LOCKSTEP_JOB_ID", "OMP_NUM_THREADS", *recorder):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with pytest.raises(KeyError), _worker_environment(new_job(tmp_path)):  # noqa: PT012  # the block that is left
        added = {
            name: os.environ[name] for name in os.environ if os.environ[name] != before.get(name)
        }
        assert added == {
            "LOCKSTEP_JOB_ID": "new",
            "LOCKSTEP_FIRST_ATTEMPT": "0",
            "LOCKSTEP_ALLOCATION": "",
            "LOCKSTEP_DIR": str(tmp_path),
            "LOCKSTEP_CLUSTER": "local",
            "LOCKSTEP_PROJECT": "",
            "TRACEPARENT": trace_of("new").traceparent(),
            "LOCKSTEP_HANG_TIMEOUT": "2m",
            "LOCKSTEP_PAUSE_TIMEOUT": "30m",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
            **dict.fromkeys(recorder, "2000"),
        }
        raise KeyError
    assert dict(os.environ) == before


def test_a_chosen_number_of_threads_stays_and_json_logs_have_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv(SWITCH, raising=False)
    for log_json in (False, True):
        with _worker_environment(new_job(tmp_path, log_json=log_json)):
            assert os.environ["OMP_NUM_THREADS"] == "7"
            assert (os.environ.get(SWITCH) == "1") == log_json


def test_the_launcher_prints_what_became_of_each_attempt_and_whom_it_blames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = new_job(tmp_path)
    job.folder.mkdir(parents=True)
    killed: dict[str, Any] = {"cause": "killed", "reason": "Rank 3 was killed.", "cause_ranks": [3]}
    raised: dict[str, Any] = {
        "cause": "exception",
        "reason": "KeyError: 'x' on rank 2.",
        "cause_ranks": [2],
        "exception": "KeyError: 'x' (/home/me/train.py:7, in step)",
        "followers": [0, 1, 3],
        "last_step": 19,
    }
    for attempt, fields in enumerate((killed, raised)):
        event = Event(
            kind="attempt_ended",
            job_id="new",
            attempt=attempt,
            fields={"outcome": "failed", **fields},
        )
        append_event(job.folder, event)
    _print_outcome(job, 1)
    first, last, pages = capsys.readouterr().err.splitlines()
    assert first == "lockstep: attempt 0: The job failed: rank 3 was killed."
    assert last == (
        "lockstep: job new: The job failed: rank 2 raised KeyError: 'x' (train.py:7, in step), "
        "after step 19; ranks 0, 1 and 3 followed. Exit status 1; lockstep report new tells more."
    )
    assert pages.startswith("lockstep: 1 of 1 ranks here had no page")


def test_without_torch_the_launcher_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.launch.run.find_spec", lambda _: None)
    with pytest.raises(click.UsageError, match=r"install torch or run pip install"):
        launch(("-m", "this"), root=tmp_path)
    assert list(tmp_path.iterdir()) == []
