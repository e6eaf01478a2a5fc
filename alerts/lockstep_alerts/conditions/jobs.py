"""Conditions on jobs: the two pages about lost work, and who or what holds a job back."""

from collections.abc import Iterator
from typing import Annotated

from lockstep_alerts.conditions.condition import LIVE_WINDOW, Condition
from lockstep_alerts.conditions.joins import (
    JOB_JOIN,
    JOB_LABELS,
    MACHINE_JOIN,
    has_paused,
    listing,
    naming_pod,
    num_ranks,
    phase_of_most_excess,
    recent,
    runs_on,
    select_jobs_without_pages,
    select_training_jobs,
    with_cause,
)
from lockstep_alerts.reading.entry import Entry, Ratio, Window, number, whole_number
from lockstep_alerts.reading.model import Duration
from lockstep_catalogue import foreign, recorded, training
from lockstep_catalogue.foreign import ALERT_CAUSE
from lockstep_catalogue.labels import CLUSTER, JOB_ID, NODE, PHASE, PP
from lockstep_catalogue.ledger import SLO
from lockstep_catalogue.promql import by, eq, has, names, none_of, one_of, select
from lockstep_catalogue.vocabulary import PAUSE_PHASES
from lockstep_catalogue.windows import ScrapeWindows
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS

_MAX_NAMED_RANKS = 16  # a page is read on a telephone
_LONG_STEPS = 1.5
_REMEMBERED = "1h"
_JUDGED_EVERY_SECONDS = 10  # tier of the agent's collector
_UNSEEN = (eq(training.SEEN_BY, "plugin"), eq(training.LAUNCHES, "unseen"))
_SIZE = select(recorded.JOB_SIZE)
_ELSEWHERE = tuple(phase for phase in training.HANG_PHASE.values if phase != "sync")


def restarts(window: str) -> str:
    """How often each job was restarted within the window, over all its nodes."""
    attempt = select(training.ATTEMPT_NUMBER)
    over = f"{attempt}[{window}]"
    newest = by("max", f"max_over_time({over})", *JOB_LABELS)
    since = f"{newest} - {JOB_JOIN} {by('min', f'min_over_time({over})', *JOB_LABELS)}"
    # A number that falls is that of a new job under an old id: it counts from there.
    begun = by("max", f"resets({over})", *JOB_LABELS)
    anew = f"{by('max', attempt, *JOB_LABELS)} and {JOB_JOIN} {begun} > 0"
    return f"({anew} or {since})"


def _lost_share(window: Duration, windows: ScrapeWindows) -> str:
    """Share of the time in which a job was seen that brought it no step further than before.

    What is done again, starts, restores and waits are in it alike; a queue is not.
    """
    farthest = f"max_over_time({select(recorded.JOB_STEP)}[{window}])"
    before = f"max_over_time({select(recorded.JOB_STEP)}[{_REMEMBERED}] offset {window})"
    mean = f"avg_over_time({select(recorded.STEP_MEAN)}[{window}])"
    gained = f"clamp_min({farthest} - {JOB_JOIN} {before}, 0) * {JOB_JOIN} {mean}"
    seen = (
        f"{windows.evaluation_seconds} * count_over_time({select(recorded.PROGRESS_AGE)}[{window}])"
    )
    return f"(1 - ({gained}) / {JOB_JOIN} ({seen} > 0))"


def _idle_restarts(before: str = "") -> str:
    """Attempts of each job since the one that came further; with a range the most in it."""
    attempt = select(training.ATTEMPT_NUMBER)
    newest = by("max", f"max_over_time({attempt}{before})" if before else attempt, *JOB_LABELS)
    return f"({newest} - {JOB_JOIN} {select(recorded.NET_ATTEMPT)})"


class JobNotProgressing(Condition):
    """Jobs without a productive second for their own time-out, whatever the reason.

    Attributes:
        timeout_steps, timeout_most: mean steps and time without one after which a job stands,
            whichever is first; never less than the agents' own two minutes.
        least_restarts: after which a job that has come no further makes no progress.
    """

    DETECTED_AFTER = round(HANG_TIMEOUT_SECONDS) + _JUDGED_EVERY_SECONDS

    timeout_steps: Annotated[float, number(0, 1000)]
    timeout_most: Annotated[Duration, Entry.duration]
    least_restarts: Annotated[int, whole_number(0, 1000)]

    def impossible(self, ranks: float) -> Iterator[tuple[str, str]]:
        """A time-out within which a healthy job takes no step."""
        if self.timeout_steps <= _LONG_STEPS:
            yield "timeout_steps", f"a step may take {_LONG_STEPS:g} mean ones; write more"
        if self.timeout_most.seconds < HANG_TIMEOUT_SECONDS:
            reason = f"agents judge no job before {HANG_TIMEOUT_SECONDS:g}s; write that or more"
            yield "timeout_most", reason

    def expression(self, windows: ScrapeWindows) -> str:
        """GPU-hours that each job loses in an hour: all of its GPUs; 1 where they are unknown."""
        seen = f"{JOB_JOIN} {select(recorded.PROGRESS_AGE)}"
        gone = f"{recent(recorded.GONE, windows)} unless {seen}"
        reasons = (
            self._hangs(),
            self._stands(windows),
            self._partly_gone(windows),
            gone,
            self._circles(),
        )
        jobs = by("group", "\nor\n".join(f"({each})" for each in reasons), *JOB_LABELS)
        unknown = f"{select(training.HANG_FIRST)} or {gone}"
        size = f"({_SIZE} or {by('group', unknown, *JOB_LABELS)})"
        return f"{jobs} * {JOB_JOIN} {size}\nunless {select_jobs_without_pages()}"

    def _hangs(self) -> str:
        elsewhere = " or ".join(
            by("group", select(metric, one_of(training.HANG_PHASE, *_ELSEWHERE)), *JOB_LABELS)
            for metric in (training.HANG_FIRST, training.HANG_MISSING)
        )
        # Ranks that only wait may be waiting for a checkpoint that is written on another node. A
        # rank that hangs in it, or before it, does not excuse them.
        excused = f"{num_ranks(*PAUSE_PHASES)} > 0 unless {JOB_JOIN} ({elsewhere})"
        judged = by("max", select(training.HANG_FIRST), *JOB_LABELS)
        return f"{judged}\nunless {JOB_JOIN} ({excused})"

    def _stands(self, windows: ScrapeWindows) -> str:
        """Jobs that stand although their agents have not judged so.

        Many long steps last longer than the time-out of the job's collectives, which would end it
        before anybody knows; and agents of old judge nothing. Where graphs may replay collectives
        that nobody sees, a page that stands proves nothing.
        """
        # What their agents judge is there before, so that the page names the rank.
        soonest = self.DETECTED_AFTER + windows.scrape_seconds
        # The mean step of a job that stands is in no window any more.
        mean = f"last_over_time({select(recorded.STEP_MEAN)}[{_REMEMBERED}])"
        most = self.timeout_most.seconds
        least = f"clamp({self.timeout_steps:g} * {mean}, {soonest:g}, {most})"
        age = select(recorded.PROGRESS_AGE)
        forgotten = f"{age} > {most} unless {JOB_JOIN} {mean}"
        return (
            f"({age} > {JOB_JOIN} ({least}) > {JOB_JOIN} ({_LONG_STEPS:g} * {mean})"
            f" or {forgotten})\n"
            f"  and {JOB_JOIN} {num_ranks('training')} > 0\n"
            f"  unless {has_paused(windows)}\n"
            f"  unless {JOB_JOIN} {select(training.JOB_SEEN, *_UNSEEN)}"
        )

    def _partly_gone(self, windows: ScrapeWindows) -> str:
        """Jobs that stand and have lost a node: nothing is to be waited for."""
        stands = f"{select(recorded.STANDING)} unless {has_paused(windows)}"
        return f"{recent(recorded.GONE, windows)} and {JOB_JOIN} ({stands})"

    def _circles(self) -> str:
        """Jobs that are restarted over and over and come no further; of old it is known that."""
        lately = f"[{self.timeout_most}] offset {self.timeout_most}"
        stepped = f"max_over_time({select(recorded.JOB_STEP)}[{_REMEMBERED}])"
        return (
            f"{_idle_restarts()} >= {self.least_restarts}"
            f" and {JOB_JOIN} {_idle_restarts(lately)} > 0 and {JOB_JOIN} {stepped} > 0"
        )

    def evidence(self) -> str:
        """Asks Prometheus whom the others wait for, who stopped first, or which nodes are gone."""
        missing = select(training.HANG_MISSING, *_JOB_MATCHERS)
        first = select(training.HANG_FIRST, *_JOB_MATCHERS)
        waited = _naming(missing, "The others wait for ")
        stopped = _naming(first, "No rank stands apart. First to stop: ")
        lost, item = select(recorded.GONE, *_JOB_MATCHERS), "{{ $series.Labels.node }}"
        gone = listing(lost, item, CLUSTER, JOB_ID, before="Nothing is heard of ")
        otherwise = "{{ else }}"
        return f"{waited}.{otherwise}{stopped}.{otherwise}{gone}{{{{ end }}}}{{{{ end }}}}"


_JOB_MATCHERS = (eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"))
_POD = naming_pod("$series.Labels", " (pod ", ")")
_RANK = (
    f"rank {{{{ $series.Labels.rank }}}} on {{{{ $series.Labels.node }}}}{_POD}"
    f'{{{{ if ne $series.Labels.{training.HANG_PHASE.name} "unknown" }}}}'
    f" in {{{{ $series.Labels.{training.HANG_PHASE.name} }}}}{{{{ end }}}}"
    f"{{{{ with $series.Labels.{training.HANG_EVIDENCE.name} }}}}"
    ' ({{ reReplaceAll "_" " " . }}){{ end }}'
    f"{{{{ with $series.Labels.{training.COMMUNICATOR.name} }}}}"
    ", communicator {{ . }}{{ end }}"
)


def _naming(ranks: str, before: str) -> str:
    return listing(ranks, _RANK, CLUSTER, JOB_ID, before=before, most=_MAX_NAMED_RANKS, end="")


class LatePart(Condition):
    """A rank, a node or a stage holds its job back (``limits.late_ratio``)."""

    DETECTED_AFTER = LIVE_WINDOW

    def expression(self, windows: ScrapeWindows) -> str:
        """Share of the step that each late part costs every rank, with its phase in the labels."""
        return select(recorded.LATE_PART)


_STAGE_LABELS = (*JOB_LABELS, PP)
_STAGE_JOIN = f"on ({names(*_STAGE_LABELS)})"


class StageUneven(Condition):
    """A stage has ``above_ratio`` of the step more work than the median stage: no rank's fault."""

    DETECTED_AFTER = LIVE_WINDOW

    above_ratio: Ratio

    def expression(self, windows: ScrapeWindows) -> str:
        """Excess ratio of each heavy stage, with the phase in the labels."""
        return f"""(
  {select(recorded.STAGE_EXCESS_RATIO)} > {self.above_ratio:g}
  and {select_training_jobs()}
)
* {_STAGE_JOIN} group_left ({PHASE.name})
  {phase_of_most_excess(windows, recorded.STAGE_EXCESS, *_STAGE_LABELS)}"""

    def evidence(self) -> str:
        """Asks Prometheus which ranks have the stage."""
        of_stage = select(
            recorded.PLACEMENT, eq(CLUSTER, "%[1]s"), eq(JOB_ID, "%[2]s"), eq(PP, "%[3]s")
        )
        item = "rank {{ $series.Labels.rank }} of {{ $series.Labels.node }}"
        return listing(of_stage, item, CLUSTER, JOB_ID, PP, before="The stage runs on ")


_LOST_WINDOW = "30m"
_SLOW_PARTS = ("rank", "node", "stage")
# Operators page for what operators change; a slow part has a share of its own.
_STANDS = (
    has(foreign.WEIGHT),
    eq(foreign.ALERT_STATE, "firing"),
    eq(foreign.ALERT_ROUTE, ""),
    none_of(ALERT_CAUSE, *_SLOW_PARTS),
)


def _jobs_with_causes() -> str:
    """Jobs of which a cause stands on one of their nodes."""
    nodes = by("group", select(foreign.ALERTS, *_STANDS, has(NODE)), CLUSTER, NODE)
    return by("group", f"{runs_on()} and {MACHINE_JOIN} {nodes}", *JOB_LABELS)


class JobLosing(Condition):
    """A share of a job's GPU-time goes to a rank, a node, restarts, or a cause that stands.

    Attributes:
        above_ratio, above_gpus: the share, and what it amounts to at least, GPU-hours in an hour.
        large_ratio, large_gpus: a smaller share, which amounts to more.
        lost_gpu_hours: that the job has lost in the last half hour, to whatever; the more a job
            loses, the sooner it is reached.
        window, least_restarts: after so many restarts what brought no step further is lost.
    """

    DETECTED_AFTER = LIVE_WINDOW
    GPU_FLOORS = ("above_gpus",)

    above_ratio: Ratio
    above_gpus: Annotated[float, number(0, 1e6)]
    large_ratio: Ratio
    large_gpus: Annotated[float, number(0, 1e6)]
    lost_gpu_hours: Annotated[float, number(0, 1e6)]
    window: Window
    least_restarts: Annotated[int, whole_number(0, 1000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """GPU-hours that each job loses in an hour, by whom or what takes them."""
        shares = "\nor\n".join((select(recorded.LATE_PART), *self._shares(windows)))
        any_job = f"clamp_min({self.above_ratio:g} * {_SIZE}, {self.above_gpus:g})"
        large_job = f"clamp_min({self.large_ratio:g} * {_SIZE}, {self.large_gpus:g})"
        limit = f"({any_job} < {JOB_JOIN} {large_job} or {large_job})"
        lost = f"sum_over_time({select(recorded.JOB_LOSS)}[{_LOST_WINDOW}])"
        hours = f"{lost} * {windows.evaluation_seconds / 3600:.4g}"
        return (
            f"({shares})\n* {JOB_JOIN} group_left () {_SIZE}\n"
            f">= {JOB_JOIN} group_left () {limit}\n"
            f"and {JOB_JOIN} ({hours} >= {self.lost_gpu_hours:g})\n"
            f"unless {select_jobs_without_pages()}"
        )

    def _shares(self, windows: ScrapeWindows) -> Iterator[str]:
        """What restarts and causes that stand take of jobs."""
        throughput = select(recorded.SLICE_RATIO, eq(SLO, "throughput"))
        slower = f"1 - {by('max', f'last_over_time({throughput}[2m])', *JOB_LABELS)}"
        often = (
            f"{JOB_JOIN} ({restarts(self.window.text)} >= {self.least_restarts}) and"
            f" {JOB_JOIN} {_idle_restarts()} < {self.least_restarts}"
        )
        yield with_cause("restarts", f"{_lost_share(self.window, windows)} and {often}")
        yield with_cause("hardware", f"({slower}) and {JOB_JOIN} {_jobs_with_causes()}")
