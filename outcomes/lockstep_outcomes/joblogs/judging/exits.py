"""What exit codes and signals tell of a failure, where the ranks exits no cause."""

from lockstep_catalogue.vocabulary import FailureClass, Verdict
from lockstep_outcomes.joblogs.judging.judgement import Judgement, accuse, most_ranks, rank_list
from lockstep_outcomes.joblogs.model import Finding, JobLog
from lockstep_records.events.event import PREEMPTED

_SIGNALS = {4: "illegal instruction", 6: "abort", 7: "bus error", 8: "arithmetic error",
            9: "kill", 11: "segmentation fault"}  # fmt: skip
_WORDS = {"Killed": "kill", "egmentation": "segmentation fault", "Bus error": "bus error",
          "Aborted": "abort"}  # fmt: skip
_CAUSES = {"segmentation fault": "segfault", "bus error": "bus_error", "kill": "killed"}
_FEW = 0.5
_SHELL = 128  # a shell reports a signal as 128 plus its number


def suspect_by_exits(log: JobLog, early: list[Finding]) -> Judgement | None:
    """The suspect by the exits that launchers report; None where they report no failure."""
    exits = _own_exits(early)
    if not exits:
        return None
    # torchrun marks the failure that it observed first; without it the first line counts.
    first = next((f for f in exits if " first" in f.key), exits[0])
    code = next(iter(first.codes), None)
    signal = _signal_name(first, code)
    by_code = first.key if code is None else f"exit code {code}"
    says = f"ended by {signal}" if signal else by_code
    cause = _CAUSES.get(signal, "exit")
    blame: Verdict = "unknown"
    failure_class: FailureClass = "unknown"
    if not _most_alike(log, exits, first):
        ranks = tuple(sorted(first.ranks))
        whose = f"Rank {rank_list(ranks)}" if ranks else "A rank"
        blame = "rank" if ranks else "unknown"
        reason = f"{whose} failed first ({says}) and reported no cause."
    elif cause == "killed":
        ranks = ()
        reason = f"{most_ranks(log)} were killed, and nothing tells by whom."
    else:
        ranks, blame, failure_class = (), "workload", "user"
        reason = f"{most_ranks(log)} ended alike ({says}) and reported no cause."
    return accuse(first, blame, reason, ranks=ranks, failure_class=failure_class, cause=cause)


def _own_exits(early: list[Finding]) -> list[Finding]:
    """Exits of ranks; else of tasks that ended by themselves; else of any that ended."""
    exits = [f for f in early if f.kind == "summary_exit" and f.ranks] or [
        f for f in early if f.kind == "srun_exit" and not _was_ended(f.key)
    ]
    exits = exits or [
        f
        for f in early
        if f.kind == "summary_exit" or (f.kind == "srun_exit" and "Killed" in f.key)
    ]
    return [f for f in exits if not set(f.codes) & {0, PREEMPTED}]


def _signal_name(first: Finding, code: int | None) -> str:
    """Name of the signal, by exit code or by the launcher's text; empty for an ordinary exit."""
    number = 0 if code is None else -code if code < 0 else code - _SHELL if code > _SHELL else 0
    by_text = (name for word, name in _WORDS.items() if word in first.key)
    return _SIGNALS.get(number) or next(by_text, "")


def _most_alike(log: JobLog, exits: list[Finding], first: Finding) -> bool:
    """Whether more than half of all ranks ended as the first did."""
    alike = {
        rank
        for f in exits
        if f.codes == first.codes and (f.codes or f.key == first.key)
        for rank in f.ranks
    }
    return len(alike) > 1 and len(alike) > _FEW * (log.world_size or 0)


def ranks_by_exits(log: JobLog, first: Finding) -> tuple[int, ...]:
    """The ranks whose exit fits a failure printed without a rank: the launcher's root cause."""
    exits = log.select_kinds("summary_exit")
    # Abort and termination follow the failure of another rank too.
    signals = [f for f in exits if any(code < 0 and code not in (-6, -15) for code in f.codes)]
    if first.kind in {"segfault", "bus_error", "host_oom"} and signals:
        return tuple(sorted({rank for f in signals for rank in f.ranks}))
    root = [f for f in exits if " first" in f.key]
    codes = {code for f in root for code in f.codes}
    alike = [f for f in exits if set(f.codes) & codes]
    if first.count > 1 and first.num_origins == 0:
        return tuple(sorted({rank for f in alike for rank in f.ranks}))
    if root:
        return root[0].ranks
    return _odd_task(log)


def _odd_task(log: JobLog) -> tuple[int, ...]:
    """The tasks that failed by themselves, by Slurm; empty where tasks are nodes of torchrun."""
    if log.select_kinds("summary_exit"):
        return ()
    ended = [f for f in log.select_kinds("srun_exit") if not _was_ended(f.key)]
    return ended[0].ranks if ended else ()


def _was_ended(how: str) -> bool:
    return "Terminated" in how or "Killed" in how or how.endswith(("143", "137", "code 0"))
