"""Attempts of a job: which runs of its pods belong together, and where a new start begins."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep_ledger.feeds.kubernetes.pods import PodRun

_CONSEQUENCE_SECONDS, _STEP_SECONDS = 30.0, 0.001
_BAD = frozenset({"failed", "disrupted", "taken", "unseen"})


@dataclass(slots=True)
class Attempt:
    """A start of a job's pods, up to the next one.

    Attributes:
        opening: name of the run that began it; of the same attempt always the same.
        end: when it failed or was taken back; None where no other attempt follows.
    """

    opening: str
    begin: float
    runs: list[PodRun] = field(default_factory=list)
    end: float | None = None

    @property
    def last_end(self) -> float | None:
        """When its last run ended; None while one runs."""
        ends = [run.end for run in self.runs]
        return None if None in ends else max((end for end in ends if end is not None), default=None)

    def close(self) -> None:
        """Note its end, which is that of its first bad run."""
        bad = [run.end for run in self.runs if run.end is not None and run.fate in _BAD]
        self.end = self.end_before(min(bad, default=self.begin))

    def end_before(self, time: float) -> float:
        """The end of an attempt after which something may begin in the same second.

        Kubernetes' times are whole seconds: an end comes just before the second, so that it is not
        taken for the end of what begins in it; and never before its own begins.
        """
        return max([int(time) - _STEP_SECONDS, *(run.begin for run in self.runs)])


def split_attempts(runs: Iterable[PodRun]) -> list[Attempt]:
    """Attempts in order, the last one without an end.

    A run begins a new attempt where its own containers failed before it, where its pod was created
    after another of the attempt had failed, or where nothing was left that ran. Pods that are added
    or that follow others which succeeded belong to the attempt that there is.
    """
    attempts: list[Attempt] = []
    ordered = sorted(runs, key=lambda each: (each.begin, each.part))
    bad = [run for run in ordered if run.fate in _BAD]
    latest_end = 0.0
    for run in ordered:
        is_gap = latest_end <= run.begin
        if not attempts or (bad and _begins_anew(run, attempts[-1], bad, is_gap=is_gap)):
            if attempts:
                attempts[-1].close()
            attempts.append(Attempt(run.part, run.begin))
        attempts[-1].runs.append(run)
        latest_end = max(latest_end, float("inf") if run.end is None else run.end)
    return attempts


def _begins_anew(run: PodRun, attempt: Attempt, bad: list[PodRun], *, is_gap: bool) -> bool:
    own = {each.part for each in attempt.runs}
    # What fails as an attempt begins, and ran before it, follows from what began it.
    horizon = attempt.begin + _CONSEQUENCE_SECONDS
    for each in bad:
        end = each.end or 0.0
        if each is run or not attempt.begin <= end <= run.begin:
            continue
        if each.part not in own and end <= horizon:
            continue
        is_replaced = each.fate in {"failed", "disrupted"} and run.created >= int(end)
        if is_gap or is_replaced or (each.pod == run.pod and each.fate != "unseen"):
            return True
    return False


def list_unseen(attempts: list[Attempt], restarts: int, uid: str) -> list[PodRun]:
    """Runs without duration for starts that an operator counts and nobody saw, before the last."""
    missing, begin = restarts + 1 - len(attempts), attempts[-1].begin
    times = [begin - _STEP_SECONDS * number for number in range(missing, 0, -1)]
    return [
        PodRun(f"{uid}/restart-{number}", uid, time, time, end=time, fate="failed")
        for number, time in enumerate(times)
    ]
