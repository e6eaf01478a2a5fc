"""What is said of the jobs recorded on a real GPU, on which hosts run ahead of the device."""

import json
import tarfile
from pathlib import Path

import pytest

from lockstep_outcomes.evidence import drop_strangers
from lockstep_records.events.event import read_events

from .report_command import report_json, reported

ARCHIVE = Path(__file__).parents[1] / "fixtures" / "h100" / "jobs.tgz"


@pytest.fixture(name="jobs", scope="module")
def _jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h100")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_the_rank_whose_steps_are_behind_is_named_though_another_is_in_forward(jobs: Path) -> None:
    analysis = reported(jobs / "hangone")
    (standstill,) = analysis.standstills
    assert standstill.missing == (1,)
    # The recorded hang ends with its job, not with an event of another job half a minute later.
    assert standstill.seconds == pytest.approx(26.1, abs=0.1)
    words = (
        "rank 1 stood still in other after step 39, while others have completed step 41; rank 0"
        " waited"
    )
    assert standstill.words == words
    assert words in report_json(jobs / "hangone")["headline"]


@pytest.mark.parametrize(
    ("job", "signs"), [("assert", 1), ("hangone", 0), ("oom", 0), ("graphs", 0), ("host", 0)]
)
def test_no_record_holds_a_sign_of_another_job(jobs: Path, job: str, signs: int) -> None:
    events = drop_strangers(read_events(jobs / job))
    assert sum(event.kind == "node_event" for event in events) == signs


@pytest.mark.parametrize("job", ["host", "loader", "rashealthy"])
def test_delays_of_the_host_that_the_device_hides_name_nobody(jobs: Path, job: str) -> None:
    report = report_json(jobs / job)
    assert report["verdict"]["kind"] == "nobody"
    assert report["verdict"]["ranks"] == []
    assert "unknown of" not in json.dumps(report)
    assert "other processes had" not in json.dumps(report)
