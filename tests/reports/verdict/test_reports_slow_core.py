"""A rank whose core did less than at its best is not accused; one with more work of its own is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_records.page.layout import ROW
from lockstep_records.page.writer import PageWriter
from lockstep_reports.arrays import Matrix
from lockstep_reports.document.advice import step_advice
from lockstep_reports.document.headline import findings
from lockstep_reports.readers.pages import read_pages
from lockstep_reports.recording.core_speed import slow_core_seconds
from lockstep_reports.recording.steps import Steps

from ..synthetic_job import Slow, SyntheticJob
from .waiting_jobs import analysed, crowded, with_waits

_BEST_NS = 2200.0


def on_cores(steps: Steps, slowdown: Matrix) -> Steps:
    """The same steps where work takes so many times as long [ranks, steps], and is calibrated."""
    work = np.sum([steps.phases[name] for name in OWN_WORK_PHASES], axis=0)
    slower = with_waits(steps, (slowdown - 1) * work)
    noise = np.random.default_rng(3).lognormal(0, 0.1, slowdown.shape)
    calibrations = _BEST_NS * slowdown * noise
    calibrations[:, 1::3] = np.nan  # not in every step
    nodes = [member.node for member in steps.members]
    slow_core = slow_core_seconds(calibrations, slowdown * work, nodes)
    assert slow_core is not None
    return replace(slower, run_queue=np.zeros_like(work), slow_core=slow_core)


def slowdowns(shape: tuple[int, ...], rank: int, ratio: float, begin: int, end: int) -> Matrix:
    values = np.ones(shape)
    values[rank, begin:end] = ratio
    return values


@pytest.mark.parametrize("span", [(60, 160), (0, 400)])
def test_a_rank_whose_core_does_less_is_not_accused_and_the_report_says_so(
    span: tuple[int, int],
) -> None:
    steps = SyntheticJob(num_steps=400, nodes=2).steps()
    slower = on_cores(steps, slowdowns(steps.seconds.shape, 1, 1.4, *span))
    assert analysed(replace(slower, slow_core=None)).verdict.ranks == (1,)
    analysis = analysed(slower)
    assert (analysis.verdict.kind, analysis.verdict.cause) == ("nobody", "busy_host")
    [episode] = analysis.episodes
    assert (episode.ranks, episode.busy_host) == ((1,), True)
    first = next(findings(analysis))
    assert first.sentence.startswith("Nobody was slow: a core of node node-0 did less than at its ")
    assert "the core of rank 1 on node node-0 did less than at its best" in first.details[0]
    assert "limits of power or heat" in " ".join(step_advice(analysis))


def test_a_slow_core_that_explains_little_is_not_what_the_report_names() -> None:
    slow = Slow(rank=1, seconds=0.018, from_step=60)
    steps = crowded(SyntheticJob(slow=(slow,), num_steps=400).steps(), 0.2)
    slow_core = np.zeros_like(steps.seconds)
    slow_core[1, 60:] = 0.004
    blocked = np.zeros_like(slow_core)
    analysis = analysed(replace(steps, slow_core=slow_core, blocked=blocked))
    assert analysis.verdict.cause == "busy_host"
    first = next(findings(analysis))
    assert first.sentence.startswith("Nobody was slow: node node-0 was busy with other work, ")


@pytest.mark.parametrize("ratio", [1.0, 1.4])
def test_a_third_more_work_accuses_a_rank_on_a_slow_core_too(ratio: float) -> None:
    steps = SyntheticJob(slow=(Slow(rank=1, seconds=0.03, from_step=60),), num_steps=400).steps()
    slower = on_cores(steps, slowdowns(steps.seconds.shape, 1, ratio, 60, 400))
    assert analysed(slower).verdict.ranks == (1,)


def test_a_rank_is_accused_beside_others_whose_cores_do_less_than_its_own() -> None:
    steps = SyntheticJob(slow=(Slow(rank=1, seconds=0.05, from_step=60),), num_steps=400).steps()
    slower = on_cores(steps, slowdowns(steps.seconds.shape, 2, 1.2, 0, 400))
    assert 1 in analysed(slower).verdict.ranks


def test_no_workload_is_slow_where_the_cores_of_all_ranks_did_less() -> None:
    steps = SyntheticJob(num_steps=400).steps()
    slowdown = np.ones_like(steps.seconds)
    slowdown[:, 100:160] = 1.5
    slower = on_cores(steps, slowdown)
    assert analysed(replace(slower, slow_core=None)).verdict.kind == "workload"
    assert analysed(slower).verdict.kind == "nobody"


def test_a_core_is_compared_with_those_of_its_own_node() -> None:
    calibrations = np.full((4, 50), 2000.0)
    calibrations[2:] = 3000.0  # another kind
    calibrations[3, 20:] = 4500.0
    slow = slow_core_seconds(calibrations, np.full((4, 50), 0.9), ["a", "a", "b", "b"])
    assert slow is not None
    assert not slow[:3].any()
    assert slow[3, :10] == pytest.approx(0.0)
    assert slow[3, 30:] == pytest.approx(0.3)


def test_cores_that_nobody_calibrated_are_unknown() -> None:
    calibrations = np.full((2, 50), np.nan)
    assert slow_core_seconds(calibrations, np.ones((2, 50)), ["a", "a"]) is None
    calibrations[0, ::10] = 2000.0  # few
    assert slow_core_seconds(calibrations, np.ones((2, 50)), ["a", "a"]) is None
    calibrations[1] = 2000.0
    slow = slow_core_seconds(calibrations, np.ones((2, 50)), ["a", "a"])
    assert slow is not None
    assert np.isnan(slow[0]).all()
    assert not slow[1].any()


def test_what_a_slow_core_took_is_read_from_pages(page_root: Path) -> None:
    job = SyntheticJob(ranks=2, num_steps=60)
    folder = job.write(page_root) / "0"
    for rank, late_ns in enumerate((2000, 3000)):
        path = folder / f"rank-{rank:05}.page"
        path.unlink()
        page = PageWriter(path, job.identity_of(rank), rows=64)
        for step in range(60):
            # Each second step is calibrated.
            present, calibration = (ROW.presence["calibration_ns"], late_ns) if step % 2 else (0, 0)
            calibration = min(calibration, 2000) if step < 30 else calibration
            phases = 0.0, 0.09, *[0.0] * 6  # forward
            numbers = step, step + 1, 0, 0, 0.09, *phases, 0.0, 0.0, 1, 1
            page.append((*numbers, present, 0, calibration, 0, 0, 0.0))
        page.commit(1)
        page.close()
    slow_core = read_pages(folder)[0].slow_core
    assert slow_core is not None
    assert slow_core[0] == pytest.approx(0.0)
    assert slow_core[1, :15] == pytest.approx(0.0)
    assert slow_core[1, 45:] == pytest.approx(0.03)
