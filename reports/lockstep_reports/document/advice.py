"""Advice: a few plain steps to do next, which follow from the verdict."""

from lockstep_outcomes.joblogs.kinds import restart_after
from lockstep_outcomes.progress.missing import rank_words
from lockstep_reports.analysis.logs import LogAnalysis
from lockstep_reports.analysis.steps import StepAnalysis
from lockstep_reports.document.headline import sees_no_phase
from lockstep_reports.verdict.verdict import Verdict
from lockstep_reports.wording import list_ranks

_ADVICE_ON_GPU = (
    "Look at clocks, temperature, power and throttling there, from before the first late step.",
    "Run a short matrix multiplication there and on a healthy GPU, and compare.",
)
_ADVICE_BY_PHASE = {
    "data": (
        "Look at the loader there: workers, storage and CPU pressure of the node.",
        "Compare the node's disk and network reads with those of a healthy node.",
    ),
    "forward": _ADVICE_ON_GPU,
    "backward": _ADVICE_ON_GPU,
    "optimizer": (
        "Look at the host memory and the CPU of that node; an offloaded optimizer runs there.",
    ),
    "other": (
        "Look for garbage collection and logging in the loop of that rank; profile its host side.",
    ),
}
# Ranks without a GPU compute on the CPU.
_ADVICE_WITHOUT_GPU = (
    "Look at CPU clocks, throttling and other processes there, from before the first late step.",
    "Run a short matrix multiplication there and on a healthy node, and compare.",
)
_DRAIN_NODE = (
    "If the signs stay with the node, drain it and start the job again from its checkpoint."
)
_ADVICE_BY_WORKLOAD = {
    "": ("No node is to blame: look at sequence lengths, pauses and shared storage then.",),
    "sequence_lengths": (
        "Sort or pack sequences so that micro-batches take equally long; no node is to blame.",
    ),
    "tokens": ("Give all ranks as many tokens a step; no node is to blame.",),
    "rotating": (
        "No single node is to blame: look for what moves from rank to rank, such as long samples.",
    ),
}
_ADVICE_FOR_STAGE = (
    "Move layers from the heavy stage to lighter ones, or give it less of the embedding and loss.",
    "No node is at fault: another one would be as slow with these layers.",
)
_ADVICE_FOR_BUSY_HOST = (
    "Look what else runs on that node, other jobs and the job's own loaders among it.",
    "Give each rank cores of its own: fewer loader workers, a cpuset, or the whole node.",
)
_ADVICE_FOR_ONE_RANK = (
    "Look at what that rank does in those steps and the others do not: logging, saving, sampling.",
)
_ADVICE_ON_LAUNCHES = (
    "Ask again in half a minute, with SET FORMAT json, and give a folder of all answers.",
)
_HELD_CAUSES = frozenset({"garbage_collection", "process_stopped"})
_ADVICE_BY_OWNER = {
    "garbage_collection": (
        "Collect in the same steps on all ranks: gc.disable(), and gc.collect() now and then.",
        "Call gc.freeze() after set-up, so that what lives for ever is not walked through again.",
    ),
    "process_stopped": (
        "Find who stops it: a debugger, a freezer of its cgroup, a scheduler, or a hypervisor.",
    ),
    "eval": ("Let each rank evaluate a part, or evaluate in a job of its own from checkpoints.",),
    "checkpoint": ("Write in the background, or let each rank write its own part.",),
    "loader": ("Look at shared storage and at the largest files; fetch more batches ahead.",),
    None: ("No node is to blame: look for what moves from rank to rank, or comes that rarely.",),
}
"""Of verdicts that no slow rank explains, by their cause."""
_ADVICE_BY_RESTART = {
    "helps": "Start it again from its last checkpoint, on other nodes.",
    "after_repair": "Keep the node out of the pool until its hardware and driver are checked.",
    "fails_again": "Send the log's words to the job's owner; a restart will fail in the same way.",
    "unknown": "Collect the logs of all ranks; this one does not tell whether a restart helps.",
}
"""After a failure, by what its cause lets expect of a restart."""
_ADVICE_BY_FAILURE_CLASS = {
    "infra": _ADVICE_BY_RESTART["after_repair"],
    "user": "Send it to the job's owner; a restart will fail in the same way.",
}


def step_advice(analysis: StepAnalysis) -> tuple[str, ...]:
    """What to do after a failure, or a slow or silent rank, by the names of its node and job.

    First comes what the lowest rank does not see of its loop; empty where nobody was slow, either.
    """
    steps, sentences = analysis.steps, " \n".join(_step_advice(analysis))
    ranks = analysis.verdict.ranks or analysis.recording.end.get("cause_ranks") or ()
    nodes = {member.node for member in steps.members if member.rank in ranks}
    names = {"the job again": f"job {steps.job_id} again"} if steps.job_id else {}
    if len(nodes) == 1 and (node := nodes.pop()):
        names |= {"that node": f"node {node}", "the node": f"node {node}"}
        names[" there"] = f" on node {node}"
    for words, name in names.items():
        sentences = sentences.replace(words, name)
    unseen = (f"{text[0].upper()}{text[1:]}" for text in _unseen(analysis))
    return (*unseen, *filter(None, sentences.split(" \n")))


def _unseen(analysis: StepAnalysis) -> tuple[str, ...]:
    return analysis.steps.members[0].unseen if analysis.steps.members else ()


def _step_advice(analysis: StepAnalysis) -> tuple[str, ...]:
    if analysis.outcome == "failed" and analysis.recording.end:
        return _advise_on_failure(analysis)
    if analysis.verdict.cause == "busy_host":
        return _ADVICE_FOR_BUSY_HOST
    if analysis.verdict.kind == "nobody":
        return ()
    # No advice on a node without evidence: only on what to record.
    if analysis.verdict.kind == "unknown":
        has_launches = analysis.recording.launches is not None
        return _ADVICE_ON_LAUNCHES if has_launches else _ask_for_more(analysis)
    # A source that does not tell is of a GPU cluster.
    tells = analysis.recording.source_kind == "pages"
    has_gpus = not tells or any(member.gpu_uuid for member in analysis.steps.members)
    return _advise_on_the_slow(analysis.verdict, has_gpus=has_gpus)


def _advise_on_the_slow(verdict: Verdict, *, has_gpus: bool) -> tuple[str, ...]:
    # A process that is killed takes its stacks with it.
    if verdict.cause in {"hang", "deadlock", "mismatched collectives"}:
        return (
            "Take the stacks of the named ranks (py-spy dump) before the job is killed.",
            "Compare the code path and the data of the named ranks with a rank that waits.",
        )
    if verdict.kind in {"in_turns", "planned", "rare"} or verdict.cause in _HELD_CAUSES:
        if len(verdict.ranks) == 1 and verdict.cause is None:
            return _ADVICE_FOR_ONE_RANK
        return _ADVICE_BY_OWNER.get(verdict.cause, _ADVICE_BY_OWNER[None])
    if verdict.kind == "workload":
        return _ADVICE_BY_WORKLOAD.get(verdict.cause or "", _ADVICE_BY_WORKLOAD[""])
    if verdict.cause == "stage_imbalance":
        return _ADVICE_FOR_STAGE
    steps = _ADVICE_BY_PHASE.get(verdict.phase or "", ())
    if not has_gpus and verdict.phase in {"forward", "backward"}:
        steps = _ADVICE_WITHOUT_GPU
    if not steps:
        steps = ("No phase explains it: look at the network port and link errors of that node.",)
    return (*steps, _DRAIN_NODE)


def _advise_on_failure(analysis: StepAnalysis) -> tuple[str, ...]:
    ranks = analysis.recording.end.get("cause_ranks") or []
    named = rank_words(ranks) if ranks else ""
    if analysis.recording.end.get("cause") == "hang":
        first = f"Read the stacks of {named or 'all ranks'}, then those of a rank that waits."
    elif named:
        first = f"Begin with the last output of {named}; what other ranks say came after it."
    else:
        first = "Read the last output of the ranks that failed."
    by_class = _ADVICE_BY_FAILURE_CLASS.get(str(analysis.recording.end.get("failure_class")))
    return (first,) if by_class is None else (first, by_class)


def log_advice(analysis: LogAnalysis) -> tuple[str, ...]:
    """What to do after a failed job; empty when it succeeded or runs."""
    incident = analysis.incident
    if incident.outcome in {"succeeded", "running"}:
        return ()
    sentences = []
    # Ranks that fail later mostly report that a peer is gone.
    if incident.ranks:
        ranks = list_ranks(incident.ranks)
        sentences.append(f"Begin with the log of rank {ranks}; what others say came after it.")
    restart = restart_after(incident.cause, incident.failure_class)
    if incident.group:
        is_ill = restart in {"after_repair", "helps"}
        begin = "Drain" if is_ill else "Look at"
        sentences.append(f"{begin} node {incident.group} before the next attempt.")
    if incident.outcome == "time_limit":
        sentences.append(
            "Ask for more time, or write checkpoints more often and let the job requeue."
        )
    if incident.failure_class:
        sentences.append(_ADVICE_BY_RESTART[restart])
    return tuple(sentences)


def _ask_for_more(analysis: StepAnalysis) -> tuple[str, ...]:
    if sees_no_phase(analysis):
        return ("Print the lines that the script needs: lockstep instrument SCRIPT.",)
    if len(analysis.steps.members) <= 1:
        return ("Give the recordings of all ranks: put them into one folder and name that.",)
    if analysis.steps.missing_ranks:
        return ("Give the recordings of the missing ranks too.",)
    if _unseen(analysis):
        return ()  # what helps is said already
    if analysis.recording.source_kind == "pages":
        return ("Record more steps.",)
    return ("Record more steps, or rank pages: lockstep run writes them.",)
