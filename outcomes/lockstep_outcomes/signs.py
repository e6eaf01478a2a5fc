"""Signs: the evidence in the words of the outcome table. Four short tables translate into them."""

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_outcomes.evidence import Evidence, RankEnd
from lockstep_outcomes.joblogs.clock import Clock
from lockstep_outcomes.joblogs.kinds import KIND_BY_NAME, SOFTWARE_XIDS
from lockstep_outcomes.joblogs.scan import Scan
from lockstep_outcomes.rules import PEERS
from lockstep_outcomes.uneven_ends import find_uneven_end, unlike_calls
from lockstep_records.events.event import OUT_OF_MEMORY, PREEMPTED

_SHELL = 128
"""A shell reports a signal as 128 plus its number."""
_SOFTWARE_XIDS = frozenset(map(str, SOFTWARE_XIDS))
_ANY_YEAR = 2000  # of lines whose times nobody asks for
_MOST_TAIL_CHARACTERS = 65_536

EXIT_SIGNS = {
    2: "bad_input",
    PREEMPTED: "gave_way",
    OUT_OF_MEMORY: "out_of_memory",
    124: "time_limit",  # of timeout(1)
    126: "not_executable",
    127: "not_found",
}
"""Exit status to sign; 0 is ``exit_ok``, any other ``exit``."""

SIGNAL_SIGNS = {
    "SIGKILL": "killed",
    "SIGSEGV": "segfault",
    "SIGBUS": "bus_error",
    "SIGABRT": "aborted",
    "SIGTERM": "terminated",
    "SIGINT": "terminated",
    "SIGHUP": "terminated",
}
"""Signal that ended a rank to sign; any other is ``crashed``."""

SCHEDULER_SIGNS = {
    # Slurm's states
    "COMPLETED": "completed",
    "FAILED": "exit",
    "SPECIAL_EXIT": "exit",
    "OUT_OF_MEMORY": "host_oom",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
    "LAUNCH_FAILED": "launch_system",
    "RECONFIG_FAIL": "launch_system",
    "TIMEOUT": "time_limit",
    "DEADLINE": "time_limit",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "PREEMPTED": "preempted",
    "REQUEUED": "preempted",
    # reasons of Kubernetes' pods, jobs and their relatives
    "Completed": "completed",
    "Complete": "completed",
    "Succeeded": "completed",
    "JobSucceeded": "completed",
    "TrainJobComplete": "completed",
    "AllJobsCompleted": "completed",
    "Error": "exit",
    "Failed": "exit",
    "BackoffLimitExceeded": "exit",
    "PodFailurePolicy": "exit",
    "FailedJobs": "exit",
    "ReachedMaxRestarts": "exit",
    "OOMKilled": "host_oom",
    "DeadlineExceeded": "time_limit",
    "NodeLost": "node_failure",
    "NodeShutdown": "node_failure",
    "DeletionByTaintManager": "node_failure",
    "DeletionByPodGC": "node_failure",
    "TerminationByKubelet": "node_failure",
    "Terminated": "node_failure",
    "Evicted": "evicted",
    "EvictionByEvictionAPI": "preempted",
    "Preempted": "preempted",
    "PreemptionByScheduler": "preempted",
    "PreemptionByKueue": "preempted",
    "InClusterQueue": "preempted",
    "Suspended": "preempted",
    "ErrImagePull": "launch_failure",
    "ImagePullBackOff": "launch_failure",
    "InvalidImageName": "launch_failure",
    "CreateContainerConfigError": "launch_failure",
    "ContainerCannotRun": "launch_failure",
    "StartError": "launch_failure",
    "CreateContainerError": "launch_system",
    "RunContainerError": "launch_system",
    "Deleted": "cancelled",
}
"""Word of a scheduler to sign."""

PHASE_SIGNS = {"done": "loop_done", "failed": "loop_failed"}
"""Last phase of a rank's page to sign."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """A piece of evidence.

    Attributes:
        source: exit, exception, output, page, scheduler, node, launcher, hang or report.
        ranks: that show it; empty where the source names none.
        text: what was found, for people.
        key: what distinguishes it from others of its name: the exception, the exit status.
    """

    name: str
    source: str
    ranks: tuple[int, ...] = ()
    node: str | None = None
    text: str = ""
    key: str = ""
    time: float | None = None


def signs_of(evidence: Evidence) -> list[Sign]:
    """All signs, in the order of the ranks' ends."""
    of_ranks = list(_rank_signs(evidence))
    return [
        *_outside_signs(evidence),
        *_node_signs(evidence),
        *of_ranks,
        *_compared_signs(evidence, of_ranks),
    ]


def signal_name(exit_code: int) -> str | None:
    """Name of the signal that an exit status tells of; None for an ordinary exit."""
    number = -exit_code if exit_code < 0 else exit_code - _SHELL if exit_code > _SHELL else 0
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def _outside_signs(evidence: Evidence) -> Iterator[Sign]:
    for word in evidence.scheduler:
        name = SCHEDULER_SIGNS.get(word, "unknown_word")
        yield Sign(name=name, source="scheduler", text=word, time=evidence.outside_time)
    if evidence.launcher_signal is not None:
        name = "time_limit" if evidence.at_time_limit else "cancelled"
        text = f"the launcher got {evidence.launcher_signal}"
        yield Sign(name=name, source="launcher", text=text, time=evidence.outside_time)
    for name in evidence.reported:
        yield Sign(name=name, source="report", text=name.replace("_", " "))
    if evidence.has_hung:
        yield Sign(name="hang", source="hang", ranks=evidence.missing,
                   text=evidence.hang_words or "no rank moved on")  # fmt: skip


def _node_signs(evidence: Evidence) -> Iterator[Sign]:
    for event in evidence.node_events:
        number = (event.detail.split() or [""])[0].removeprefix("Xid")
        is_software = event.sign == "xid" and number in _SOFTWARE_XIDS
        yield Sign(
            name="software_xid" if is_software else event.sign,
            source="node",
            ranks=event.ranks,
            node=event.node,
            text=event.detail,
            time=event.time,
        )


def _rank_signs(evidence: Evidence) -> Iterator[Sign]:
    for end in evidence.ranks:
        if end.exit_code is not None:
            yield _exit_sign(end, end.exit_code)
        if end.phase in PHASE_SIGNS:
            yield _sign(end, PHASE_SIGNS[end.phase], "page", f"a page that says {end.phase}")
        yield from _text_signs(end)


def _compared_signs(evidence: Evidence, of_ranks: list[Sign]) -> Iterator[Sign]:
    """Signs that no rank shows by itself."""
    uneven = find_uneven_end(evidence.ranks)
    if uneven is not None:
        text = uneven.words[:1].upper() + uneven.words[1:]
        yield Sign(name="uneven_end", source="page", ranks=uneven.ranks, text=text)
    waited = {sign.ranks[0] for sign in of_ranks if sign.name in PEERS}
    calls = [(e.rank, e.exception or "", e.last_step) for e in evidence.ranks if e.rank in waited]
    if text := unlike_calls(calls):
        yield Sign(name="unlike_calls", source="exception", text=text)


def status_sign(exit_code: int) -> str:
    """Name of the sign of an exit status; a signal's where a shell or Python reports one."""
    name = signal_name(exit_code)
    if name is not None:
        return SIGNAL_SIGNS.get(name, "crashed")
    return EXIT_SIGNS.get(exit_code, "exit_ok" if exit_code == 0 else "exit")


def _exit_sign(end: RankEnd, exit_code: int) -> Sign:
    text = signal_name(exit_code) or f"exit status {exit_code}"
    return _sign(end, status_sign(exit_code), "exit", text, key=str(exit_code))


def _text_signs(end: RankEnd) -> Iterator[Sign]:
    """Signs in the exception and in the last lines, by the table of the job logs."""
    if end.exception:
        # A traceback before it makes it an exception and not a line that mentions one.
        text = f'Traceback (most recent call last):\n  File "rank"\n{end.exception}\n'
        yield from _scanned(end, text, "exception")
    if end.last_lines:
        tail = end.last_lines[-_MOST_TAIL_CHARACTERS:]
        yield from _scanned(end, tail, "output")
        success = KIND_BY_NAME["success"].pattern
        line = next((line for line in tail.splitlines() if success.search(line)), None)
        if line is not None:
            yield _sign(end, "success", "output", line.strip())


def _scanned(end: RankEnd, text: str, source: str) -> Iterator[Sign]:
    scan = Scan("output", Clock(_ANY_YEAR))
    scan.add(text.encode("utf-8", "replace"))
    for (kind, key), group in scan.groups.items():
        yield _sign(end, kind, source, group.first.text, key=key)


def _sign(end: RankEnd, name: str, source: str, text: str, key: str = "") -> Sign:
    return Sign(
        name=name, source=source, ranks=(end.rank,), node=end.node, text=text, key=key,
        time=end.time,
    )  # fmt: skip
