"""Whom a job without a line has slow or missing: forty runs, beside what rules by duration say."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lockstep_outcomes.progress.hangs import HangTimeouts, find_hang
from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.nccl.launches import read_launches
from lockstep_records.page.reader import Page, read_page
from lockstep_reports.command import report

from .ranks import ddp, run_ranks, start_ranks

STEPS, HANG_STEP = 300, 200
VERSIONS: dict[str, dict[str, Any]] = {
    **{f"v{version}": {"version": version} for version in range(3, 8)},
    "256 channels": {"version": 6, "channels": 256},
}
SLOW: dict[str, tuple[dict[str, Any], list[int]]] = {
    "healthy": ({}, []),
    "late": ({"late": "5:60:300:5000"}, [5]),
    "two late": ({"late": "2:60:300:6000,7:60:300:3500"}, [2]),
    "slow link": ({"slow_from": 60, "slow_until": 300, "slow_us": 4000}, []),
}
OTHERS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "late device": ({"late_device": "4:60:300:1500"}, [4]),
    "loaded again": ({"reload": 150, "late": "1:160:300:5000"}, [1]),
    "children after the stop": ({"after_stop": 0, "late": "3:60:300:5000"}, [3]),
    "64 communicators": ({"plan": ddp(8, layers=64, comms=64), "steps": 160}, []),
}
SPEED = [
    pytest.param(played | fault, named, id=f"{name}, {version}")
    for version, played in VERSIONS.items()
    for name, (fault, named) in SLOW.items()
] + [pytest.param(fault, named, id=name) for name, (fault, named) in OTHERS.items()]
QUICK = [next(each for each in SPEED if each.id == name) for name in ("late, v7", "late device")]
# name of the hang, what is played, who is missing
HANGS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    **{
        f"one does not come, {version}": (
            played | {"hang_rank": 6, "hang_step": HANG_STEP, "hang_op": 2},
            (6,),
        )
        for version, played in VERSIONS.items()
    },
    "all come": ({"version": 5, "hang_all_step": HANG_STEP}, ()),
    "all come, no kernel events": ({"version": 7, "hang_all_step": HANG_STEP}, ()),
    "another function": ({"odd_rank": 4, "odd_step": HANG_STEP, "odd_op": 1}, (4,)),
    "a stopped process": ({"version": 3, "stop_rank": 7, "stop_step": HANG_STEP}, (7,)),
    "hosts run ahead": (
        {"ahead": 5, "hang_rank": 2, "hang_step": HANG_STEP, "hang_op": 3},
        (2,),
    ),
}


def pages_of(root: Path) -> list[Page]:
    return [read_page(path) for path in list_pages(list_attempts(root / "jobs" / "job")[-1])]


def verdict_of(job: Path, out: Path) -> dict[str, Any]:
    result = CliRunner().invoke(report, [str(job), "--json", str(out)], standalone_mode=False)
    assert result.exception is None, result.output
    verdict: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))["verdict"]
    return verdict


def longest_by_duration(root: Path) -> int | None:
    """The rank whose collectives take longest, as a rule by duration has it; None unknown."""
    means: list[float] = []
    for page in pages_of(root):
        ends = [each for each in read_launches(page.path).collectives if each["kernels_ended"]]
        durations = [each["end_ns"] - each["begin_ns"] for each in ends]
        means.append(float(np.mean(durations)) if durations else np.nan)
    return None if np.isnan(means).any() else int(np.argmax(means))


def check_verdict(root: Path, out: Path, settings: dict[str, Any], named: list[int]) -> None:
    job, errors = run_ranks(root, **{"steps": STEPS, **settings})
    assert errors == ""
    verdict = verdict_of(job, out)
    assert verdict["ranks"][:1] == named, verdict
    assert verdict["kind"] in ({"rank"} if named else {"nobody", "workload", "rare"})
    if named:
        assert longest_by_duration(root) not in named  # who waits longest is a victim


@pytest.mark.timing
@pytest.mark.parametrize(("settings", "named"), QUICK)
def test_the_late_rank_is_named(
    root: Path, tmp_path: Path, settings: dict[str, Any], named: list[int]
) -> None:
    check_verdict(root, tmp_path / "report.json", settings, named)


@pytest.mark.release
@pytest.mark.parametrize(("settings", "named"), SPEED)
def test_reports_name_who_is_late_and_nobody_else(
    root: Path, tmp_path: Path, settings: dict[str, Any], named: list[int]
) -> None:
    check_verdict(root, tmp_path / "report.json", settings, named)


@pytest.mark.parametrize(("settings", "missing"), HANGS.values(), ids=HANGS)
def test_a_hang_names_who_did_not_come(
    root: Path, settings: dict[str, Any], missing: tuple[int, ...]
) -> None:
    timeouts = HangTimeouts(step_seconds=2.0, pause_seconds=1000.0)
    deadline, hang = time.monotonic() + 60, None
    with start_ranks(root, steps=STEPS, **settings):
        while hang is None and time.monotonic() < deadline:
            time.sleep(0.5)
            if (root / "jobs" / "job" / "0").is_dir():
                hang = find_hang(pages_of(root), time.monotonic_ns(), timeouts)
        assert hang is not None
        assert hang.missing.ranks == missing, hang.missing
