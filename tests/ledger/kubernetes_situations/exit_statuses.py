"""Part 2: exit statuses are judged as the launcher judges them (docs/outcomes.md)."""

from .manifests import job
from .scenario import Cluster, ExpectedJob, Situation

# status: outcome, class, cause, why
STATUSES: dict[int, tuple[str, str | None, str | None, str]] = {
    0: ("succeeded", None, None, "Status 0 of all pods is a success."),
    1: ("failed", "unknown", "exit", "Status 1 names no cause."),
    2: ("failed", "user", "bad_arguments", "Status 2 is bad input."),
    75: ("preempted", None, "preemption", "Status 75: it saved its state and gave way."),
    76: ("failed", "user", "host_oom", "Status 76: it ran out of memory."),
    124: ("time_limit", None, "time_limit", "Status 124 is a time limit."),
    126: ("failed", "user", "launch_failure", "Status 126: the command cannot be executed."),
    127: ("failed", "user", "launch_failure", "Status 127: the command was not found."),
    134: ("failed", "unknown", "aborted", "Status 134 is SIGABRT."),
    135: ("failed", "unknown", "bus_error", "Status 135 is SIGBUS."),
    137: ("failed", "unknown", "killed", "SIGKILL without OOMKilled: nothing tells by whom."),
    139: ("failed", "unknown", "segfault", "Status 139 is a segmentation fault."),
}


def _make(status: int) -> Situation:
    outcome, failure_class, cause, why = STATUSES[status]
    name = f"x{status:03d}-status"

    def script(c: Cluster) -> None:
        c.apply(job(name, 2, run=2, lab={"exit-code": status}))
        c.wait_condition("Job", name, "Failed" if status else "Complete")

    expected = ExpectedJob(name, outcome, failure_class, cause, attempts=1, gpu_seconds=4)
    return Situation(f"exit-status-{status}", why, script, (expected,))


BY_STATUS = [_make(status) for status in STATUSES]
