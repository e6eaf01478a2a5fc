"""Judges jobs that are made by their clocks, and holds an episode's begin against the truth."""

from lockstep_reports.search.score import score
from lockstep_reports.verdict.judge import judge
from lockstep_reports.verdict.verdict import Episode, Verdict

from .timed_job import TimedJob

MIN_TOLERANCE_STEPS, TOLERANCE_RATIO = 5, 0.02


def judged(job: TimedJob) -> tuple[Verdict, tuple[Episode, ...]]:
    steps = job.steps()
    return judge(steps, score(steps))[:2]


def assert_begins_where_it_began(job: TimedJob) -> None:
    verdict, episodes = judged(job)
    assert verdict.ranks == (job.rank,), job
    begin = min(episode.start_step for episode in episodes if job.rank in episode.ranks)
    tolerance = max(MIN_TOLERANCE_STEPS, TOLERANCE_RATIO * job.num_steps)
    assert abs(begin - job.from_step) <= tolerance, job
