"""Ranks that were late because others had their cores: no rank is slow.

The kernel counts how long a thread was ready to run and had no core. What is left of a rank's work
without that is its own, and only by that it is slow.
"""

from dataclasses import replace

import numpy as np

from lockstep_catalogue.labels import OWN_WORK_PHASES
from lockstep_reports import nan_stats
from lockstep_reports.arrays import Integers, Matrix
from lockstep_reports.recording.steps import Steps
from lockstep_reports.search.candidates import Candidate
from lockstep_reports.search.score import MIN_EFFECT_RATIO, Scores, excess, score
from lockstep_reports.verdict.verdict import Episode, Verdict
from lockstep_reports.verdict.workload import LOADS, workload
from lockstep_reports.wording import duration, percent, plural

# Share of the lateness that waits for a core must explain: less leaves a cause of equal size.
_MIN_EXPLAINED_SHARE = 0.5
# A rank with three quarters of the others' speed, a third more work, is NVRx's straggler on any
# host; less than that leaves room for noise in what is left of its work.
_MAX_LEFT_RATIO = 1 / 4
# Of what a rank waits. In five of 51 healthy runs, whose ranks waited for cores in 15 to 69 % of
# the time, one rank lost up to 9 % of these waits by its own work, and in one 22 %.
_MAX_LOST_BESIDE = 0.1
_USUAL_QUANTILE = 0.25  # waits lengthen more than half of the steps on some hosts
_MAX_NAMED_NODES = 4


def host_explains(steps: Steps, scores: Scores, candidate: Candidate) -> bool:
    """Whether the host explains a candidate's lateness, in its episode.

    True if (1) waits for a core are half of the lateness, or (2) the host is crowded and the rank
    did not sleep; and, in both cases, what is left is under a quarter more work. It is rarely
    nothing: a thread that loses its core again and again finds its caches cold.
    """
    if steps.run_queue is None:
        return False
    columns = candidate.stretch.columns.start + np.flatnonzero(candidate.late)
    rows, waits = list(candidate.rows), steps.run_queue[:, columns]
    # Unknown waits make all of these NaN, and no comparison true.
    everywhere = scores.own_work - steps.run_queue
    if candidate.by_work:
        work = np.where(np.isnan(waits), np.nan, scores.own_work[:, columns])
        longer, left = (float(nan_stats.mean(excess(v, rows))) for v in (work, work - waits))
        is_waiting, has_device = left <= (1 - _MIN_EXPLAINED_SHARE) * longer, False
    else:
        # Threads that nobody reads share the cores; a device may be slow without the host.
        longer = float(nan_stats.mean(candidate.margin[candidate.late]))
        if float(nan_stats.mean(excess(waits, rows))) >= _MIN_EXPLAINED_SHARE * longer:
            return True
        is_waiting, has_device = False, any(member.gpu_uuid for member in steps.members)
    is_awake = not _is_asleep(steps, rows, columns, _MIN_EXPLAINED_SHARE * longer)
    is_by_host = is_waiting or (is_crowded(steps) and not has_device and is_awake)
    return is_by_host and not _is_longer(everywhere, candidate)


def _is_asleep(steps: Steps, rows: list[int], columns: Integers, seconds: float) -> bool:
    """Whether rows sleep so many seconds a step longer than others, or nobody knows it."""
    if steps.blocked is None:
        return True
    return not float(nan_stats.mean(excess(steps.blocked[:, columns], rows))) < seconds


def is_crowded(steps: Steps) -> bool:
    """Whether waits for a core make up a share of the run in which they may hide who is slow."""
    if steps.run_queue is None:
        return False
    return float(np.nansum(steps.run_queue)) >= MIN_EFFECT_RATIO * float(np.nansum(steps.seconds))


def tolerated_loss_seconds(steps: Steps) -> float:
    """Seconds that a healthy rank may lose by its own work where other processes take its cores."""
    waits = np.zeros(1) if steps.run_queue is None else steps.run_queue
    return _MAX_LOST_BESIDE * float(np.nansum(waits)) / len(steps.members)


def remove_waits(steps: Steps) -> Steps:
    """The same steps as if each rank had had a core whenever it was ready to run."""
    own = np.sum([steps.phases[name] for name in OWN_WORK_PHASES], axis=0)
    # Some of the waits were in collectives: no step had less work than the quickest rank usually.
    least = float(nan_stats.lowest(nan_stats.quantile(own, _USUAL_QUANTILE, axis=1), axis=0))
    waits = np.zeros_like(own) if steps.run_queue is None else np.nan_to_num(steps.run_queue)
    removed = np.minimum(waits, np.maximum(own - least, 0.0))
    return replace(steps.with_less_work(removed), run_queue=None)


def is_straggler(scores: Scores, candidate: Candidate) -> bool:
    """Whether a candidate's own work is so much longer than the others' that no host excuses it."""
    return _is_longer(scores.own_work, candidate)


def _is_longer(work: Matrix, candidate: Candidate) -> bool:
    """Whether a candidate's work [ranks, steps] is longer by a straggler's share in its episode."""
    inside, rows = work[:, candidate.stretch.columns], list(candidate.rows)
    usual = float(np.nansum(nan_stats.median(np.delete(inside, rows, axis=0), axis=0)))
    longer = excess(inside, rows)
    # Without the longest, which may be the first of the run, with all that is done once.
    return float(np.nansum(longer) - nan_stats.highest(longer, axis=0)) > _MAX_LEFT_RATIO * usual


def busy_host_verdict(steps: Steps, sentences: tuple[str, ...]) -> Verdict:
    """Nobody is slow, for the hosts were busy with other work, as sentences on its episodes say."""
    if not sentences:
        sentences = (f"{_write_waits(steps)}; little was lost beside that.",)
    return Verdict(kind="nobody", cause="busy_host", evidence=sentences)


def busy_host_sentence(steps: Steps, episode: Episode) -> str:
    """Who had to wait for a core, where, how long and at what cost."""
    waited, others_waited = _compare(steps.run_queue, steps, episode)
    steps_in_words = f"From step {episode.start_step} to {episode.end_step}"
    ranks = f"rank {', '.join(map(str, episode.ranks))} on {busy_nodes(steps, episode)}"
    return (
        f"{steps_in_words} other processes had the cores of {ranks}: it waited {duration(waited)} "
        f"for a core, the others {duration(others_waited)}. That cost "
        f"{duration(episode.lost_seconds)}."
    )


def _compare(seconds: Matrix | None, steps: Steps, episode: Episode) -> tuple[float, float]:
    """Seconds [ranks, steps] of an episode's ranks over its steps, and of the others; 0 unknown."""
    if seconds is None:
        return 0.0, 0.0
    inside, rows = seconds[:, episode.columns], np.isin(steps.ranks, episode.ranks)
    own, others = nan_stats.mean(inside[rows], axis=0), nan_stats.median(inside[~rows], axis=0)
    return float(np.nansum(own)), float(np.nansum(others))


def busy_nodes(steps: Steps, episode: Episode) -> str:
    """The nodes of an episode's ranks, in words."""
    nodes = list(dict.fromkeys(m.node for m in steps.members if m.rank in episode.ranks))
    if len(nodes) > _MAX_NAMED_NODES:
        return plural(len(nodes), "node")
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)}"


def busy_everywhere(steps: Steps, slow: Verdict, window_steps: int) -> Verdict | None:
    """Nobody is slow, where busy hosts explain a slow workload; else None.

    They do where no workload is slow without the waits for a core. On a crowded host caches are
    shared too: there uneven data explains it, or what ranks sleep, and no longer time on a core.
    """
    if steps.run_queue is None or np.isnan(steps.run_queue).mean() > _MIN_EXPLAINED_SHARE:
        return None
    if not is_crowded(steps):
        return None
    left, without = remove_waits(steps), "that"
    if steps.blocked is not None:
        if slow.cause in LOADS:
            return None
        own = np.sum([steps.phases[name] for name in OWN_WORK_PHASES], axis=0)
        left = steps.with_less_work(np.maximum(own - np.nan_to_num(steps.blocked), 0.0))
        without = "all time on cores and waits for them"
    if workload(left, score(left), window_steps):
        return None
    sentence = f"{_write_waits(steps)}; without {without} no steps were slow."
    return busy_host_verdict(steps, (sentence,))


def _write_waits(steps: Steps) -> str:
    """Begins a sentence on the shares of all recorded time that the host took."""
    assert steps.run_queue is not None
    total = float(np.nansum(steps.seconds[~np.isnan(steps.run_queue)]))
    waited = float(np.nansum(steps.run_queue)) / total
    return (
        f"Ranks waited for a core in {percent(waited)} of their time, because other processes had "
        "them"
    )
