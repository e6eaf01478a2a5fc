"""The endings of a job that the trainer makes for real, and what is true of each."""

import signal
from dataclasses import dataclass

_RANK = "rank=1,step=20"
_CANCEL_AFTER = 8.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One ending.

    Attributes:
        severity: of the report's headline; ``slow`` and ``nobody`` are alike, for a slow machine
            makes cause ranks.
        faults: for the trainer; ``world`` ranks run.
        options: further ones of ``lockstep train``.
        stop: signal to the launcher, ``stop_after`` seconds after the first step that is printed,
            or after the last one with ``stops_after_training``.
        has_time_limit: whether the scheduler's time limit is then, ``limit_seconds`` after the
            start.
        causes: any of them is right.
        alert: that has to fire; empty for none.
        says: all of these stand in the headline.
    """

    name: str
    outcome: str
    causes: tuple[str | None, ...]
    failure_class: str | None
    severity: str
    says: tuple[str, ...] = ()
    cause_ranks: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    stop: signal.Signals | None = None
    stop_after: float = _CANCEL_AFTER
    stops_after_training: bool = False
    has_time_limit: bool = False
    limit_seconds: int = 60
    steps: int = 60
    alert: str = ""

    @property
    def job_id(self) -> str:
        """The name as a folder's name."""
        return self.name.replace(" ", "-").replace(",", "").lower()

    @property
    def awaited(self) -> str:
        """What the output says when the fault comes, or the signal may."""
        return "fault: " if self.faults else "loss"


_ENDLESS = 100_000

SCENARIOS = (
    Scenario(name="exception in one rank", outcome="failed", causes=("exception",),
             failure_class="user", cause_ranks=(1,), faults=(f"raise:{_RANK}",), severity="failed",
             says=("rank 1 raised ValueError", "after step 19", "ranks 0 and 2 followed")),
    Scenario(name="exception in all ranks", outcome="failed", causes=("exception",),
             failure_class="user", faults=("raise:rank=all,step=20",), severity="failed",
             says=("most ranks raised ValueError", "after step 19")),
    Scenario(name="exception before step 1", outcome="failed", causes=("exception",),
             failure_class="user", cause_ranks=(1,), faults=("raise:rank=1,step=1",),
             severity="failed", says=("rank 1 raised ValueError",)),
    Scenario(name="out of memory", outcome="failed", causes=("host_oom",), severity="out_of_memory",
             failure_class="user", cause_ranks=(1,), faults=(f"oom:{_RANK}",),
             says=("rank 1", "memory"), alert="TrainOutOfMemory"),
    Scenario(name="SIGKILL", outcome="failed", causes=("killed",), failure_class="unknown",
             cause_ranks=(1,), faults=(f"kill:{_RANK}",), severity="failed",
             says=("rank 1 was killed by SIGKILL",)),
    Scenario(name="SIGSEGV", outcome="failed", causes=("segfault",), failure_class="unknown",
             cause_ranks=(1,), faults=(f"segfault:{_RANK}",), severity="failed",
             says=("segmentation fault on rank 1",)),
    Scenario(name="hang", outcome="failed", causes=("hang",), failure_class="unknown",
             cause_ranks=(1,), faults=(f"stop:{_RANK},duration=10m",), severity="hung",
             says=("rank 1 stood still", "after step 19", "ranks 0 and 2 waited"),
             options=("--hang-timeout", "20s", "--timeout", "80s"), alert="JobNotProgressing"),
    Scenario(name="stopped and going on", outcome="succeeded", causes=("success",),
             failure_class=None, faults=(f"stop:{_RANK},duration=65s",), severity="hung",
             says=("rank 1 stood still", "after step 19"), alert="JobNotProgressing", steps=400,
             options=("--hang-timeout", "20s", "--timeout", "5m")),
    Scenario(name="time-out behind a crash", outcome="failed", causes=("exception",),
             failure_class="user", cause_ranks=(1,), faults=(f"raise:{_RANK},linger=60s",),
             severity="failed", says=("ValueError", "rank 1"), options=("--timeout", "10s")),
    Scenario(name="loss not finite", outcome="succeeded", causes=("success",), failure_class=None,
             faults=("nan-gradient:rank=1,step=40",), severity="not_finite", steps=500,
             says=("not finite from step 4",), alert="TrainLossBad"),
    Scenario(name="time limit before success", outcome="time_limit", causes=("time_limit",),
             failure_class="user", stop=signal.SIGTERM, has_time_limit=True, steps=_ENDLESS,
             severity="stopped", says=("time limit",)),
    Scenario(name="time limit after success", outcome="succeeded", severity="nobody",
             causes=("time_limit_after_success", None), failure_class=None,
             faults=("exit-hang:rank=1,step=20,duration=10m",), stop=signal.SIGTERM,
             stops_after_training=True, has_time_limit=True),
    Scenario(name="teardown crash", outcome="succeeded", causes=("teardown_crash", None),
             failure_class=None, faults=(f"exit-crash:{_RANK}",), severity="nobody"),
    Scenario(name="Ctrl-C", outcome="cancelled", causes=("cancelled",), failure_class=None,
             stop=signal.SIGINT, steps=_ENDLESS, severity="stopped", says=("was cancelled",)),
    # The trainer takes it as a warning: it saves, and gives way.
    Scenario(name="SIGTERM to the launcher", outcome="preempted", causes=("preemption",),
             failure_class=None, stop=signal.SIGTERM, steps=_ENDLESS, severity="stopped",
             says=("was preempted",)),
    Scenario(name="preempted", outcome="preempted", causes=("preemption",), failure_class=None,
             faults=("preempt-job:rank=0,step=20",), steps=_ENDLESS, severity="stopped",
             says=("was preempted",)),
    Scenario(name="data missing", outcome="failed", causes=("data_error",), failure_class="user",
             faults=("missing-data:rank=all,step=20",), severity="failed",
             says=("FileNotFoundError",)),
)  # fmt: skip
