"""The endings of a job that the trainer makes for real, and what is true of each."""

import signal
from dataclasses import dataclass

_RANK = "rank=1,step=20"
_CANCEL_AFTER = 8.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One ending.

    Attributes:
        faults: for the trainer; ``world`` ranks run.
        options: further ones of ``lockstep train``.
        stop: signal to the launcher, ``stop_after`` seconds after the first step that is printed,
            or after the last one with ``stops_after_training``.
        has_time_limit: whether the scheduler's time limit is then.
        causes: any of them is right.
    """

    name: str
    outcome: str
    causes: tuple[str | None, ...]
    failure_class: str | None
    culprits: tuple[int, ...] = ()
    faults: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    stop: signal.Signals | None = None
    stop_after: float = _CANCEL_AFTER
    stops_after_training: bool = False
    has_time_limit: bool = False
    steps: int = 60


SCENARIOS = (
    Scenario(name="exception in one rank", outcome="failed", causes=("exception",),
             failure_class="user", culprits=(1,), faults=(f"raise:{_RANK}",)),
    Scenario(name="exception in all ranks", outcome="failed", causes=("exception",),
             failure_class="user", faults=("raise:rank=all,step=20",)),
    Scenario(name="out of memory", outcome="failed", causes=("host_oom",),
             failure_class="user", culprits=(1,), faults=(f"oom:{_RANK}",)),
    Scenario(name="SIGKILL", outcome="failed", causes=("killed",), failure_class="unknown",
             culprits=(1,), faults=(f"kill:{_RANK}",)),
    Scenario(name="SIGSEGV", outcome="failed", causes=("segfault",), failure_class="unknown",
             culprits=(1,), faults=(f"segfault:{_RANK}",)),
    Scenario(name="hang", outcome="failed", causes=("hang",), failure_class="unknown",
             culprits=(1,), faults=(f"stop:{_RANK},duration=10m",),
             options=("--hang-timeout", "5s", "--timeout", "20s")),
    Scenario(name="time-out behind a crash", outcome="failed", causes=("exception",),
             failure_class="user", culprits=(1,), faults=(f"raise:{_RANK},linger=60s",),
             options=("--timeout", "10s")),
    Scenario(name="time limit before success", outcome="time_limit", causes=("time_limit",),
             failure_class="user", stop=signal.SIGTERM, has_time_limit=True, steps=100_000),
    Scenario(name="time limit after success", outcome="succeeded",
             causes=("time_limit_after_success", None), failure_class=None,
             faults=("exit-hang:rank=1,step=20,duration=10m",), stop=signal.SIGTERM,
             stops_after_training=True, has_time_limit=True),
    Scenario(name="teardown crash", outcome="succeeded", causes=("teardown_crash", None),
             failure_class=None, faults=(f"exit-crash:{_RANK}",)),
    Scenario(name="cancelled", outcome="cancelled", causes=("cancelled",), failure_class=None,
             stop=signal.SIGINT, steps=100_000),
    Scenario(name="preempted", outcome="preempted", causes=("preemption",), failure_class=None,
             faults=("preempt-job:rank=0,step=20",), steps=100_000),
    Scenario(name="data missing", outcome="failed", causes=("data_error",), failure_class="user",
             faults=("missing-data:rank=all,step=20",)),
)  # fmt: skip
