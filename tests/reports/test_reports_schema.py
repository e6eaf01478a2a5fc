"""The JSON of a report keeps to its published schema, whatever it was made from."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from writers.report import markdown_page, schema

from .report_command import report_json
from .synthetic_job import Slow, SyntheticJob

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests/fixtures"
SOURCES = {
    "operations": "straggler-bytedance/trace-ST.parquet",
    "log": "joblogs/gpu_oom_one_rank_others_time_out.log",
    "flight_recorder": "flight-recorder-nvrx/lock_gil_1st",
    "kineto": "kineto-hta",
    "worker_times": "minibatch-alibaba/job_3_norm.csv",
}


def problems(payload: dict[str, Any]) -> list[str]:
    errors = Draft202012Validator(schema()).iter_errors(payload)
    return [f"{list(error.absolute_path)}: {error.message}" for error in errors]


@pytest.mark.parametrize("kind", SOURCES)
def test_a_report_keeps_to_the_schema(kind: str) -> None:
    payload = report_json(FIXTURES / SOURCES[kind])
    assert payload["source"]["kind"] == kind
    assert problems(payload) == []


def test_a_report_of_a_step_series_keeps_to_the_schema() -> None:
    payload = report_json(next((FIXTURES / "megatron-iteration-times").glob("gpt*")))
    assert payload["source"]["kind"] == "step_series"
    assert problems(payload) == []


def test_a_compared_report_of_pages_keeps_to_the_schema(page_root: Path) -> None:
    folder = SyntheticJob(slow=(Slow(rank=2),)).write(page_root)
    payload = report_json(
        folder, "--from", "100", "--against", "baseline", "--price-per-gpu-hour", "2"
    )
    assert payload["comparison"]["verdict_changed"]
    assert problems(payload) == []


def test_the_schema_refuses_what_is_not_declared_and_what_is_missing() -> None:
    payload = report_json(FIXTURES / SOURCES["operations"])
    assert problems({**payload, "surprise": 1})
    assert problems({**payload, "verdict": {**payload["verdict"], "kind": "somebody"}})
    del payload["outcome"]
    assert problems(payload)


@pytest.mark.parametrize("kind", SOURCES)
def test_every_null_at_the_top_has_its_reason(kind: str) -> None:
    payload = report_json(FIXTURES / SOURCES[kind])
    silent = {"price_per_gpu_hour", "failure_class", "first_cause", "comparison"}
    times = {"first_sign", "first_step", "last_progress", "last_sign", "run_seconds"}
    nulls = {name for name, value in payload.items() if value is None} - silent - times
    assert nulls <= payload["unknown"].keys() | {"lost_ratio", "lost_seconds"}
    assert all(reason for reason in payload["unknown"].values())


def test_the_published_page_is_up_to_date() -> None:
    assert (ROOT / "docs/formats/report.md").read_text() == markdown_page()
