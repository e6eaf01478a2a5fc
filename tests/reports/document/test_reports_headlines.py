"""The first line of a report is the most severe finding: failed, hung, slow, or nobody."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lockstep_records.events.event import Event, append_event
from lockstep_records.files.jobs import job_folder, page_path
from lockstep_records.files.last_output import RankError, write_error
from lockstep_records.page.layout import PHASES
from lockstep_records.page.writer import PageWriter, RankIdentity
from lockstep_reports.analysis.steps import StepAnalysis, analyse
from lockstep_reports.command import report
from lockstep_reports.document.advice import step_advice
from lockstep_reports.document.headline import findings
from lockstep_reports.recording.steps import Steps

from ..synthetic_job import Slow, SyntheticJob, recording_of

RANKS = 4
BEGIN = 1_790_000_000.0
SLOW = SyntheticJob(slow=(Slow(rank=2, seconds=0.05),))
FAILED: Mapping[str, Any] = {
    "outcome": "failed",
    "cause": "exception",
    "reason": "KeyError: 'x' on rank 1.",
    "cause_ranks": [1],
    "exception": "KeyError: 'x' (/home/me/train.py:7, in step)",
    "followers": [0, 2, 3],
    "last_step": 199,
}
STANDING = [
    {"rank": 0, "phase": "sync", "step": 199, "idle_seconds": 130.0, "process": "S"},
    {"rank": 1, "phase": "data", "step": 199, "idle_seconds": 131.0, "process": "T"},
]


def event(kind: str, seconds: float = 100.0, **fields: Any) -> Event:
    return Event(kind=kind, job_id="synthetic", attempt=0, fields=fields, time=BEGIN + seconds)


def analysed(steps: Steps, *events: Event) -> StepAnalysis:
    ends = [event.fields for event in events if event.kind == "attempt_ended"]
    recording = replace(recording_of(steps), events=events, end=ends[-1] if ends else {})
    return analyse(recording)


def headline(analysis: StepAnalysis) -> tuple[str, str]:
    first = next(findings(analysis))
    return first.severity, first.sentence


def test_a_failure_comes_before_a_slow_rank_which_stays_a_remark() -> None:
    analysis = analysed(SLOW.steps(), event("attempt_ended", **FAILED))
    severity, sentence = headline(analysis)
    assert severity == "failed"
    assert sentence == (
        "The job failed: rank 1 raised KeyError: 'x' (train.py:7, in step), after step 199;"
        " ranks 0, 2 and 3 followed."
    )
    assert any("Rank 2 was slow in backward" in finding.sentence for finding in findings(analysis))


@pytest.mark.parametrize(
    ("cause", "severity", "begin"),
    [
        ("host_oom", "out_of_memory", "The job ran out of memory: "),
        ("hang", "hung", "The job hung: "),
        ("killed", "failed", "The job failed: "),
    ],
)
def test_memory_and_hangs_are_named_as_such(cause: str, severity: str, begin: str) -> None:
    end = event("attempt_ended", outcome="failed", cause=cause, reason="It was so on rank 1.")
    found, sentence = headline(analysed(SyntheticJob().steps(), end))
    assert found == severity
    assert sentence.startswith(begin)


def stood_still(seconds: float = 200.0, column: int = 120) -> Steps:
    """A job in one step of which rank 1 stood in its loader, and all others waited."""
    steps = SyntheticJob().steps()
    phases = {name: values.copy() for name, values in steps.phases.items()}
    phases["data"][1, column] += seconds
    others = np.arange(RANKS) != 1
    phases["sync"][others, column] += seconds
    durations = steps.seconds.copy()
    durations[:, column] += seconds
    hung = np.zeros_like(durations)
    hung[:, column] = 1
    start = steps.start.copy()
    start[:, column + 1 :] += seconds
    return replace(steps, phases=phases, seconds=durations, hung=hung, start=start)


def test_a_standstill_is_a_state_of_its_own_and_makes_nobody_slow() -> None:
    analysis = analysed(stood_still())
    severity, sentence = headline(analysis)
    assert severity == "hung"
    assert sentence == "The job stood still for 3.3 min: rank 1 stood still in data in step 120."
    assert analysis.verdict.kind == "nobody"
    assert analysis.goodput.seconds["hang"] == pytest.approx(RANKS * 200, rel=0.01)
    assert analysis.goodput.seconds["data_wait"] < 100
    assert analysis.standstills[0].missing == (1,)


def test_a_hang_that_lasts_is_charged_until_the_end() -> None:
    hang = event("hang", 200.0, ranks=STANDING, missing=[1])
    end = event("attempt_ended", 300.0, outcome="failed", cause="hang", cause_ranks=[1],
                reason="It hung: rank 1 stood still in data after step 199.")  # fmt: skip
    steps = SyntheticJob().steps()
    members = tuple(replace(member, last_step=199) for member in steps.members)
    analysis = analysed(replace(steps, members=members), hang, end)
    assert headline(analysis) == (
        "hung", "The job hung: rank 1 stood still in data after step 199."
    )  # fmt: skip
    assert analysis.standstills[0].seconds == pytest.approx(230.0)
    assert analysis.goodput.seconds["hang"] == pytest.approx(RANKS * 230)


def test_a_hang_after_which_steps_follow_did_not_last() -> None:
    before = [entry | {"step": 150} for entry in STANDING]
    steps = SyntheticJob().steps()
    members = tuple(replace(member, last_step=199) for member in steps.members)
    analysis = analysed(
        replace(steps, members=members), event("hang", 200.0, ranks=before, missing=[1])
    )
    assert analysis.standstills == ()


@pytest.mark.parametrize(("first", "until"), [(40, "to the end"), (190, "to the end")])
def test_a_loss_that_is_not_finite_is_the_headline(first: int, until: str) -> None:
    steps = SLOW.steps()
    loss, bad = steps.loss.copy(), np.zeros_like(steps.loss)
    loss[:, first:], bad[:, first:] = np.nan, 1
    severity, sentence = headline(analysed(replace(steps, loss=loss, not_finite=bad)))
    assert severity == "not_finite"
    assert sentence.startswith(f"The loss is not finite from step {first} {until}: ")


def test_a_gradient_norm_that_overflows_is_not_a_loss_that_is_not_finite() -> None:
    steps = SyntheticJob().steps()
    bad = np.ones_like(steps.loss)
    assert headline(analysed(replace(steps, not_finite=bad)))[0] == "nobody"


def test_a_resume_from_an_older_checkpoint_comes_before_a_slow_rank() -> None:
    resumed = event("job_resumed", step=100, fallback=True, passed_over=2, steps_lost=40)
    severity, sentence = headline(analysed(SLOW.steps(), resumed))
    assert severity == "resumed"
    assert sentence == (
        "Resumed from an older checkpoint, step 100; 2 newer ones could not be used;"
        " 40 steps were done again."
    )
    newest = event("job_resumed", step=100, fallback=False)
    assert headline(analysed(SLOW.steps(), newest))[0] == "slow"


def test_what_costs_less_than_one_percent_is_a_remark() -> None:
    brief = SyntheticJob(
        num_steps=2000, slow=(Slow(rank=2, seconds=0.03, from_step=100, until_step=140),)
    )
    analysis = analysed(brief.steps())
    assert (analysis.verdict.kind, analysis.verdict.ranks) == ("nobody", ())
    first = next(findings(analysis))
    assert (first.severity, first.sentence) == (
        "nobody", "Nobody was slow by more than 1 % of the run."
    )  # fmt: skip
    assert first.details[0].startswith("Rank 2 was late in backward from step")


def test_a_slow_rank_is_told_with_its_share_of_the_run() -> None:
    severity, sentence = headline(analysed(SLOW.steps()))
    assert severity == "slow"
    assert sentence.startswith("Rank 2 was slow in backward on node node-0: ")
    assert sentence.endswith("% of the run (moderate).")


def saving(ranks: tuple[int, ...], seconds: float = 0.5) -> Steps:
    """A healthy job of which some ranks save for so long after each 20th step."""
    steps = SyntheticJob().steps()
    columns = np.arange(0, len(steps.numbers), 20)
    longer = steps.seconds.copy()
    longer[:, columns] += seconds
    checkpoint = np.zeros_like(steps.seconds)
    checkpoint[np.ix_(np.array(ranks), columns)] = seconds
    return replace(steps, seconds=longer, phases={**steps.phases, "checkpoint": checkpoint})


def test_checkpoints_of_one_rank_for_which_all_wait_are_the_cause_with_their_cost() -> None:
    severity, sentence = headline(analysed(saving((0,))))
    assert severity == "slow"
    assert sentence.startswith("All waited for checkpoints of rank 0, every 20 steps: ")


@pytest.mark.parametrize("steps", [saving(tuple(range(RANKS))), saving((0,), seconds=0.01)])
def test_checkpoints_of_all_ranks_and_cheap_ones_hold_up_nobody(steps: Steps) -> None:
    assert headline(analysed(steps))[0] == "nobody"


@pytest.mark.parametrize("gpu_uuid", ["", "GPU-1"])
def test_advice_on_slow_work_fits_ranks_without_a_gpu(gpu_uuid: str) -> None:
    steps = SLOW.steps()
    members = tuple(replace(member, gpu_uuid=gpu_uuid) for member in steps.members)
    advice = " ".join(step_advice(analysed(replace(steps, members=members))))
    assert ("other processes" in advice) == (not gpu_uuid)
    assert ("healthy GPU" in advice) == bool(gpu_uuid)


@pytest.mark.parametrize("has_pages", [True, False])
def test_a_job_that_failed_before_its_first_step_has_a_report(
    page_root: Path, *, has_pages: bool
) -> None:
    job = job_folder(page_root, "early")
    for rank in range(2):
        path = page_path(page_root, "early", 0, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        if has_pages:
            page = PageWriter(path, RankIdentity(job_id="early", rank=rank, world_size=2), rows=4)
            page.heartbeat(1, PHASES.index("failed"))
            page.close()
            error = RankError(source="except_hook", type="ValueError", message=f"no data {rank}")
            write_error(path, error)
    if not has_pages:
        failed = {**FAILED, "exception": "ValueError: no data", "last_step": None}
        for kind, fields in (("job_started", {"world_size": 2}), ("attempt_ended", failed)):
            append_event(job, Event(kind=kind, job_id="early", attempt=0, fields=fields))
    result = CliRunner().invoke(report, [str(job), "--json", "-"])
    assert result.exit_code == 0, result.output
    payload = json.loads(result.output)
    assert payload["severity"] == "failed"
    assert "ValueError: no data" in payload["headline"]
    assert payload["steps"]["count"] == 0
    rendered = CliRunner().invoke(report, [str(job), "--html", str(page_root / "r.html")])
    assert rendered.exit_code == 0, rendered.output


def test_steps_in_which_nothing_was_seen_are_the_first_line_with_the_line_that_helps() -> None:
    steps = SyntheticJob().steps()
    nothing = np.zeros_like(steps.seconds)
    phases = dict.fromkeys(steps.phases, nothing) | {"other": steps.seconds}
    blind = analysed(replace(steps, phases=phases))
    severity, sentence = headline(blind)
    assert severity == "unknown"
    assert sentence.startswith("Nothing inside the steps was seen: give lockstep.attach(model, ")
    assert "lockstep instrument SCRIPT" in " ".join(step_advice(blind))
