"""A window selects the same steps from every matrix of a recording."""

from dataclasses import replace

import numpy as np

from lockstep_reports.recording.align import Bound, Window, cut_before, cut_inside
from lockstep_reports.recording.recording import Recording
from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge

from ..synthetic_job import Slow, SyntheticJob, recording_of

WINDOW = Window(first=Bound(step=100), last=Bound(step=299))


def recording_with_tokens() -> Recording:
    """Rank 1 is slow from step 160 to 259, and has as many more tokens in the same steps."""
    slow = Slow(rank=1, phase="forward", seconds=0.05, from_step=160, until_step=260)
    steps = SyntheticJob(num_steps=400, slow=(slow,)).steps()
    tokens = np.full_like(steps.seconds, 1000.0)
    tokens[1, 160:260] = 3000.0
    return recording_of(replace(steps, tokens=tokens, sequence_squares=tokens**2))


def test_a_window_keeps_the_tokens_of_its_steps() -> None:
    steps = cut_inside(recording_with_tokens(), WINDOW).steps
    assert steps.tokens is not None
    assert steps.sequence_squares is not None
    assert steps.tokens.shape == steps.sequence_squares.shape == steps.seconds.shape
    slow = steps.numbers[steps.tokens[1] > 1000.0]
    assert (slow.min(), slow.max()) == (160, 259)


def test_uneven_data_in_a_window_blames_the_workload_and_no_rank() -> None:
    steps = cut_inside(recording_with_tokens(), WINDOW).steps
    verdict, _ = judge(steps, score(steps))[:2]
    assert (verdict.kind, verdict.cause) == ("workload", "tokens")


def test_what_lies_before_a_window_keeps_its_own_tokens() -> None:
    steps = cut_before(recording_with_tokens(), WINDOW).steps
    assert steps.tokens is not None
    assert steps.tokens.shape == steps.seconds.shape == (4, 100)
