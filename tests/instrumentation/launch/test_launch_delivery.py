"""A launcher describes its job, and delivers events where no agent does."""

import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from servers import FakeLedger, wait_until

from lockstep.launch.description import (
    JobDescription,
    gpu_model,
    is_at_time_limit,
    num_gpus_of_node,
    time_limit_seconds,
)
from lockstep.launch.job import Job
from lockstep.launch.options import job_options
from lockstep.launch.run import _description, _job_of, deliver_events
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.sender import LedgerAddress
from lockstep_records.events.event import Event, append_event, check_event


def job(root: Path, ledger: FakeLedger | None, name: str = "new") -> Job:
    address = LedgerAddress(url=ledger.url) if ledger else None
    return Job(program=("-m", "this"), root=root, job_id=name, ledger=address)


def add(job: Job, *kinds: str) -> None:
    for kind in kinds:
        append_event(job.folder, Event(kind=kind, job_id=job.job_id, attempt=0))


def test_without_an_agent_the_launcher_delivers_up_to_the_end_of_the_job(
    root: Path, ledger: FakeLedger
) -> None:
    new = job(root, ledger)
    with deliver_events(new):
        add(new, "job_started")
        wait_until(lambda: ledger.events, 30)
        add(new, "job_finished")
    assert [event["kind"] for event in ledger.events] == ["job_started", "job_finished"]


def test_what_a_launcher_could_not_send_the_next_one_of_the_node_sends(
    root: Path, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.launch.run._DRAIN_SECONDS", 0.1)
    ledger.statuses = [503] * 1000
    first, second = job(root, ledger, "first"), job(root, ledger, "second")
    with deliver_events(first):
        add(first, "job_started", "job_finished")
    assert not ledger.events
    ledger.statuses.clear()
    with deliver_events(second):
        add(second, "job_started")
        wait_until(lambda: len(ledger.events) >= 3, 30)
    sent = [(event["job_id"], event["kind"]) for event in ledger.events]
    assert sorted(sent) == [
        ("first", "job_finished"), ("first", "job_started"), ("second", "job_started"),
    ]  # fmt: skip


def test_where_an_agent_delivers_and_where_no_ledger_is_named_the_launcher_sends_nothing(
    root: Path, ledger: FakeLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.launch.run._DRAIN_SECONDS", 0.1)
    agent = DeliveryDuty(root, is_agent=True)
    assert agent.take()
    new = job(root, ledger)
    with deliver_events(new), deliver_events(job(root, None, "other")):
        add(new, "job_started")
    assert ledger.events == []
    agent.release()


def test_the_start_of_a_job_says_who_runs_what_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values: dict[str, Any] = {}

    @click.command()
    @job_options
    def command(**options: Any) -> None:
        values.update(options)

    text = (
        "--job-class pretraining --queue h100 --user ada --deadline 2026-12-01T06:00+01:00"
        " --declared-tokens 1000 --price-per-gpu-hour 2.5 --currency EUR --project llm"
        " --nproc-per-node 8 --nnodes 4 --endpoint localhost:1 --gpu-model H100 --job-id j"
        f" --dir {tmp_path}"
    )
    result = CliRunner().invoke(command, text.split())
    assert result.exit_code == 0, result.output
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    fields = _description(_job_of(("-m", "this"), values))
    event = Event(kind="job_started", job_id="j", attempt=0, fields=fields)
    assert check_event(event.document(), now_seconds=time.time()) == event
    expected = {
        "user": "ada", "job_class": "pretraining", "queue": "h100", "project": "llm",
        "deadline_time": 1796101200.0, "declared_tokens": 1000, "price_per_gpu_hour": 2.5,
        "currency": "EUR", "num_nodes": 4, "world_size": 32, "num_gpus": 32, "gpu_model": "H100",
    }  # fmt: skip
    assert expected.items() <= fields.items()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("--deadline tomorrow", "'tomorrow' is not a time"), ("--declared-tokens 0", "0 is not in")],
)
def test_a_bad_description_is_refused(arguments: str, words: str) -> None:
    @click.command()
    @job_options
    def command(**_: Any) -> None:
        raise AssertionError

    result = CliRunner().invoke(command, arguments.split())
    assert result.exit_code == 2
    assert words in result.output


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--ledger 'nowhere' is not an address"):
        Job(program=("x",), root=tmp_path, ledger=LedgerAddress(url="nowhere"))


def test_slurm_and_the_driver_tell_what_nobody_said(tmp_path: Path) -> None:
    slurm = {
        "SLURM_JOB_USER": "ada", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": "llm",
        "SLURM_JOB_START_TIME": "1000", "SLURM_JOB_END_TIME": "4600", "SLURM_GPUS_ON_NODE": "8",
    }  # fmt: skip
    card = tmp_path / "0000:07:00.0"
    card.mkdir()
    (card / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 5\n")
    fields = JobDescription(queue="mine").event_fields(environment=slurm, gpus=tmp_path)
    assert fields == {
        "user": "ada", "queue": "mine", "project": "llm", "time_limit_seconds": 3600.0,
        "gpu_model": "NVIDIA H100 80GB HBM3",
    }  # fmt: skip
    assert num_gpus_of_node(slurm) == 8
    assert num_gpus_of_node({"CUDA_VISIBLE_DEVICES": ""}) == 0
    assert num_gpus_of_node({}, tmp_path) == 1
    assert gpu_model(tmp_path / "none") is None
    assert time_limit_seconds({}) is None
    assert is_at_time_limit(4590, slurm)
    assert not is_at_time_limit(4000, slurm)
    assert not is_at_time_limit(4590, {})
