"""Summaries of a real job in MLflow, W&B and TensorBoard, read back by the libraries themselves."""

import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from servers import captured
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lockstep.sinks import sinks_of
from lockstep.sinks.mlflow import open_sink
from lockstep.sinks.summary import Summary

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
LOOP = """
import time
import lockstep

monitor = lockstep.attach()
for step in range(20):
    monitor.enter_phase("forward")
    time.sleep(0.002)
    monitor.step(loss=4.0 / (step + 1), tokens=10, samples=2, learning_rate=0.1)
monitor.close()
"""


@dataclass(frozen=True)
class SummarisedJob:
    store: str
    logs: Path
    offline: Path
    stderr: str


@pytest.fixture(name="job", scope="module")
def _job(module_memory: Path, tmp_path_factory: pytest.TempPathFactory) -> SummarisedJob:
    folder = tmp_path_factory.mktemp("sinks")
    script = folder / "loop.py"
    script.write_text(LOOP)
    store, logs = f"sqlite:///{folder}/runs.db", folder / "runs"
    command = [sys.executable, "-m", "lockstep_cli.main", "run", "--dir", str(module_memory)]
    command += ["--job-id", "job-a"]
    for destination in (f"mlflow:{store}", f"tensorboard:{logs}", f"wandb:{folder}"):
        command += ["--summary-to", destination]
    done = captured(
        [*command, str(script)],
        env={**os.environ, "WANDB_MODE": "offline"},
        cwd=folder,
        check=True,
        timeout=55,
    )
    return SummarisedJob(store, logs, folder / "wandb", done.stderr)


def test_mlflow_holds_a_finished_run_with_numbers_and_verdict(job: SummarisedJob) -> None:
    client = MlflowClient(job.store)
    experiment = client.get_experiment_by_name("lockstep")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "job-a"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["lockstep/tokens"] == 200
    assert run.data.metrics["lockstep/loss"] == pytest.approx(0.2)
    assert run.data.metrics["lockstep/steps/count"] == 20
    assert 0.002 <= run.data.metrics["lockstep/steps/median_seconds"] < 1
    assert run.data.tags["lockstep.outcome"] == "succeeded"
    assert run.data.tags["lockstep.verdict"] in {"unknown", "nobody"}
    assert run.data.tags["mlflow.note.content"]


def test_tensorboard_holds_numbers_by_their_step_and_a_verdict_as_text(job: SummarisedJob) -> None:
    events = EventAccumulator(str(job.logs / "job-a"))
    events.Reload()
    (tokens,) = events.Scalars("lockstep/tokens")[-1:]
    assert (tokens.step, tokens.value) == (19, 200.0)
    (verdict,) = events.Tensors("lockstep/verdict/text_summary")
    assert b"outcome: succeeded" in verdict.tensor_proto.string_val[0]


def leveldb_log(data: bytes) -> Iterator[bytes]:
    """Records of LevelDB's log format, behind wandb's own seven bytes."""
    offset, record = 0, b""
    while offset + 7 <= len(data):
        size, kind = struct.unpack_from("<HB", data, offset + 4)
        record += data[offset + 7 : offset + 7 + size]
        offset += 7 + size
        # A header does not cross the end of a block of 32 KiB.
        if (rest := 32768 - (offset + 7) % 32768) < 7:
            offset += rest
        if kind in {1, 4}:
            yield record
            record = b""


def test_wandb_holds_an_offline_run_with_numbers_and_verdict(job: SummarisedJob) -> None:
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415  # loads only where needed

    (file,) = job.offline.glob("offline-run-*/run-*.wandb")
    values: dict[str, str] = {}
    for data in leveldb_log(file.read_bytes()[7:]):
        record = wandb_internal_pb2.Record.FromString(data)  # type: ignore[attr-defined]  # made as it loads
        items = [*record.history.item, *record.summary.update]
        values.update({item.key or "/".join(item.nested_key): item.value_json for item in items})
    assert float(values["lockstep/tokens"]) == 200
    assert values["lockstep/outcome"] == '"succeeded"'
    assert values["lockstep/headline"]


def test_the_launcher_prints_nothing_of_sinks_that_work(job: SummarisedJob) -> None:
    assert len(job.stderr.splitlines()) == 2, job.stderr


def test_a_run_of_the_users_own_is_written_to_and_not_ended(
    job: SummarisedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = MlflowClient(job.store)
    own_run = client.create_run(client.create_experiment("own"))
    monkeypatch.setenv("MLFLOW_RUN_ID", own_run.info.run_id)
    summary = Summary(job_id="job-b", step=3, numbers={"tokens": 7}, facts={"verdict": "nobody"})
    open_sink("job-b", job.store).put(summary, last=True)
    run = client.get_run(own_run.info.run_id)
    assert run.info.status == "RUNNING"
    assert run.data.metrics["lockstep/tokens"] == 7
    assert run.data.tags["lockstep.verdict"] == "nobody"


@pytest.mark.parametrize(
    ("destination", "sentence"),
    [("comet", "'comet' is none of mlflow, tensorboard, wandb"), ("", "is none of")],
)
def test_an_unknown_sink_is_refused_before_anything_starts(
    tmp_path: Path, destination: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        sinks_of((destination,), tmp_path)


def test_a_sink_whose_library_is_missing_names_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.sinks.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"pip install '\.\[wandb\]'"):
        sinks_of(("wandb",), tmp_path)
