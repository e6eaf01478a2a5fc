"""Attempts of a job that end badly: at the start, again and again, or for want of memory."""

from typing import Annotated

from lockstep_alerts.conditions.condition import Condition
from lockstep_alerts.conditions.joins import JOB_JOIN, JOB_LABELS, NODE_JOIN, RUNNING, grown
from lockstep_alerts.reading.quantities import Window, whole_number
from lockstep_catalogue import gpu, host, training
from lockstep_catalogue.labels import CLUSTER, JOB_ID, MEMORY_EVENT, MODEL, NODE, STATE, UUID
from lockstep_catalogue.metric import Metric
from lockstep_catalogue.promql import Matcher, by, eq, has, names, one_of, select
from lockstep_catalogue.windows import ScrapeWindows

_FAILED = ("failed", "gone")


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


class FailedOnStart(Condition):
    """Ranks of the newest attempt have failed, and none of its ranks has completed a step."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of failed ranks of each such job."""
        failed = by("sum", select(training.RANKS, one_of(STATE, *_FAILED)), *JOB_LABELS)
        stepped = by("max", select(training.STEP), *JOB_LABELS)
        return f"{failed} > 0 unless {JOB_JOIN} ({stepped} > 0)"


class CrashLoop(Condition):
    """Jobs that were restarted ``least_restarts`` times or more within ``window``."""

    window: Window
    least_restarts: Annotated[int, whole_number(0, 1000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Restarts of each job within the window."""
        return f"{restarts(self.window.text)} >= {self.least_restarts}"


class OutOfMemoryLoop(Condition):
    """Jobs whose allocations fail again after ``least_restarts`` restarts within ``window``.

    Attributes:
        window: within which failed allocations and restarts count.
        least_restarts: with failed allocations, from which on it is a loop.
    """

    window: Window
    least_restarts: Annotated[int, whole_number(0, 1000)]

    def expression(self, windows: ScrapeWindows) -> str:
        """Failed allocations and kills by the kernel, by job that is restarted over and over."""
        killed = (host.JOB_MEMORY_EVENTS, eq(MEMORY_EVENT, "oom_kill"))
        failed = f"{self._grown(training.OUT_OF_MEMORY)} or {self._grown(*killed)}"
        looping = f"{restarts(self.window.text)} >= {self.least_restarts}"
        several = f"{by('sum', failed, *JOB_LABELS)} > {self.least_restarts - 0.5}"
        return f"{several} and {JOB_JOIN} {looping}"

    def _grown(self, metric: Metric, *matchers: Matcher) -> str:
        # The series of an attempt that dies at once is born above zero.
        return f"({grown(metric, self.window.text, *matchers, labels=JOB_LABELS)})"


class TopologyWrong(Condition):
    """Ranks of one attempt do not agree on the size of the job, or are more or fewer than it."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Ranks of each job that does not fit together, by one of three signs."""
        attempt = select(training.ATTEMPT_NUMBER)
        # A node that an earlier attempt has left reports its pages for a while.
        newest = (
            f"{NODE_JOIN} ({attempt} == {JOB_JOIN} group_left () {by('max', attempt, *JOB_LABELS)})"
        )
        sizes = f"({select(training.WORLD_RANKS)} and {newest})"
        most = by("max", sizes, *JOB_LABELS)

        def ranks(*states: str) -> str:
            matchers = (one_of(STATE, *states),) if states else ()
            return by("sum", f"({select(training.RANKS, *matchers)} and {newest})", *JOB_LABELS)

        disagree = f"{most} > {JOB_JOIN} {by('min', sizes, *JOB_LABELS)}"
        too_many = f"{ranks(*RUNNING)} > {JOB_JOIN} {most}"
        lately = f"max_over_time({select(training.RANKS)}[{windows.long}])"
        away = (
            f"{by('group', lately, *JOB_LABELS, NODE)} unless {NODE_JOIN} {select(training.RANKS)}"
        )
        few = f"{ranks()} < {JOB_JOIN} {most} and {JOB_JOIN} {ranks('init')} > 0"
        # An agent that is away for a moment takes the ranks of its node with it.
        too_few = f"{few} unless {JOB_JOIN} ({away})"
        return f"({disagree})\nor\n({too_many})\nor\n({too_few})"


class MixedModels(Condition):
    """Jobs on GPUs of several models: all of them run at the pace of the slowest."""

    def expression(self, windows: ScrapeWindows) -> str:
        """Number of models by job."""
        of_gpu = (CLUSTER, NODE, UUID)
        model = by("group", select(gpu.GPU_INFO), *of_gpu, MODEL)
        owner = by("group", select(gpu.GPU_OWNER_INFO, has(JOB_ID)), *of_gpu, JOB_ID)
        # A GPU that jobs share is of one model: the job's side may be many.
        held = f"{owner} * on ({names(*of_gpu)}) group_left ({MODEL.name}) {model}"
        models = by("group", held, *JOB_LABELS, MODEL)
        return f"{by('count', models, *JOB_LABELS)} > 1"
