"""The outcome table: from top to bottom, the first rule whose signs are there decides.

A sign comes from ``signs``: an exit status, a signal, a line or an exception (by the table of the
job logs, ``joblogs.kinds``), a word of the scheduler, a page, or an incident of a node. A
cause that a line can name has class and wording from that table, so that it exists once.
"""

from dataclasses import dataclass
from typing import Literal

from lockstep_catalogue.vocabulary import FailureClass, Outcome, Verdict
from lockstep_outcomes.joblogs.kinds import DATA_ERROR, KINDS, Kind, Tier

Extent = Literal["any", "all"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table.

    Attributes:
        name: the cause; of rules with one name the first that holds decides.
        signs: at least one of these is there.
        failure_class: who has to act; None unless it failed.
        blame: whom it names where few ranks show the sign; where most do, the workload.
        reason: one sentence, with ``{ranks}``, ``{sign}`` and ``{node}`` filled in.
        also: at least one of these is there too.
        unless: none of these is there.
        extent: whether any rank shows it, or every rank that has ended.
    """

    name: str
    signs: tuple[str, ...]
    outcome: Outcome
    failure_class: FailureClass | None
    blame: Verdict
    reason: str
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    extent: Extent = "any"


def _names(*tiers: Tier) -> tuple[str, ...]:
    """Names of the job logs' kinds of some tiers, in the order of their table."""
    return tuple(dict.fromkeys(kind.name for kind in (*KINDS, DATA_ERROR) if kind.tier in tiers))


SYNONYMS = {
    "host_oom": ("out_of_memory",),
    "launch_failure": ("not_found", "not_executable"),
    "bad_arguments": ("bad_input",),
    "node_failure": ("node_lost",),
    "gpu_fault": ("gpu_lost", "ecc_error"),
}
"""Signs of other sources that mean the same as a kind of line."""


def _make_rules(*tiers: Tier) -> tuple[Rule, ...]:
    """A rule for each kind of line of some tiers, with the other signs that mean the same."""
    by_name = {kind.name: kind for kind in (*reversed(KINDS), DATA_ERROR) if kind.tier in tiers}
    return tuple(_make_rule(by_name[name]) for name in _names(*tiers))


def _make_rule(kind: Kind) -> Rule:
    says = kind.says or kind.name.replace("_", " ")
    shows_text = kind.name in {"exception", "data_error", "xid"}
    # Who started the job wrong reads what the program said of it.
    text = ": {sign}" if kind.blame == "workload" else ""
    reason = "{sign}{ranks}." if shows_text else f"{says[:1].upper()}{says[1:]}{{ranks}}{text}."
    signs = (kind.name, *SYNONYMS.get(kind.name, ()))
    return Rule(kind.name, signs, "failed", kind.failure_class, kind.blame, reason)


_CRASHES = ("segfault", "bus_error", "aborted", "killed", "crashed")
_FAILURES = (*_names(Tier.CAUSE, Tier.CRASH, Tier.NETWORK), *_CRASHES, "exit")
PEERS = ("gloo_closed", "nccl_remote", "store_lost", "taken_down", "hidden_cause", "peer_ended",
         "peer_lost", "watchdog_stuck")  # fmt: skip
"""Signs of a rank that fails because another one is not there."""
_OUTSIDE = ("time_limit", "preempted", "preempted_exit", "gave_way", "evicted", "cancelled",
            "slurm_cancelled", "interrupted", "torchrun_signal")  # fmt: skip
OUTSIDE_SIGNS = frozenset(_OUTSIDE) - {"gave_way"}
"""Signs that somebody outside ended the job: what ranks show from then on is a consequence."""

# fmt: off
RULES: tuple[Rule, ...] = (
    # --- after a reported success nothing changes the outcome
    Rule("time_limit_after_success", ("success",), "succeeded", None, "nobody",
         "The run reported its success; its time limit ended it afterwards.",
         also=("time_limit",)),
    Rule("ended_after_success", ("success",), "succeeded", None, "nobody",
         "The run reported its success and was ended afterwards.",
         also=("cancelled", "slurm_cancelled", "preempted", "evicted", "terminated")),
    Rule("teardown_crash", ("success",), "succeeded", None, "nobody",
         "The run reported its success; what failed afterwards was the leaving ({also}).",
         also=_FAILURES),
    Rule("time_limit_after_success", ("loop_done",), "succeeded", None, "nobody",
         "Every rank had ended its loop; its time limit ended it while it left.",
         also=("time_limit",), unless=("exit", "exception", "data_error", "gpu_oom", "gave_way"),
         extent="all"),
    # A page says that the loop ended also where the program then leaves with an error of its own:
    # only a signal is surely of the teardown.
    Rule("teardown_crash", ("loop_done",), "succeeded", None, "nobody",
         "Every rank had ended its loop; what failed afterwards was the leaving ({also}).",
         also=_CRASHES, unless=("exit", "exception", "data_error", "gpu_oom", "gave_way"),
         extent="all"),
    Rule("success", ("success",), "succeeded", None, "nobody", "The run reported its success."),
    # Ranks that end well have survived whatever they printed and whatever happened to their node.
    Rule("success", ("exit_ok",), "succeeded", None, "nobody", "Every rank ended without an error.",
         unless=("not_converged", "exit", *_OUTSIDE, "node_failure", "node_lost"), extent="all"),
    # --- the program's own word
    Rule("not_converged", ("not_converged",), "not_converged", None, "workload",
         "The run ended by itself without its target."),
    Rule("preemption", ("gave_way", "preempted_exit"), "preempted", None, "nobody",
         "It saved its state and gave way; nothing had failed.",
         unless=(*_names(Tier.CAUSE, Tier.CRASH), *_CRASHES, "exit", "time_limit")),
    # --- causes that name themselves, before whatever followed from them
    *_make_rules(Tier.CAUSE),
    *_make_rules(Tier.CRASH),
    Rule("killed", ("killed",), "failed", "unknown", "rank",
         "{Ranks} killed by SIGKILL, and nothing tells by whom."),
    Rule("aborted", ("crashed",), "failed", "unknown", "rank", "Ended by {sign}{ranks}."),
    # --- ranks that ended elsewhere than the others, which then wait for nobody
    Rule("uneven_end", ("uneven_end",), "failed", "user", "rank", "{sign}.",
         also=(*PEERS, "hang", "nccl_timeout")),
    # --- somebody outside ended it
    Rule("hang", ("hang",), "failed", "unknown", "rank",
         "It had hung when it was ended: {sign}.", also=_OUTSIDE),
    Rule("time_limit", ("time_limit",), "time_limit", "user", "nobody",
         "It was still running when its time limit ended it; nothing had failed."),
    Rule("preemption", ("preempted",), "preempted", None, "nobody",
         "It was preempted; nothing had failed."),
    Rule("eviction", ("evicted",), "preempted", None, "nobody",
         "The kubelet evicted it to keep its node alive."),
    Rule("cancelled", ("cancelled", "slurm_cancelled", "interrupted", "torchrun_signal"),
         "cancelled", None, "nobody", "It was cancelled from outside; nothing had failed."),
    # --- the network, a hang, and what only follows from the failure of another
    *_make_rules(Tier.NETWORK),
    Rule("hang", ("hang",), "failed", "unknown", "rank",
         "It hung: {sign}."),
    Rule("collective_timeout", ("nccl_timeout",), "failed", "unknown", "unknown",
         "A collective timed out, and nothing tells which rank failed first."),
    Rule("aborted", ("aborted",), "failed", "unknown", "rank", "Ended by {sign}{ranks}.",
         unless=PEERS),
    Rule("peer_failure", ("unlike_calls",), "failed", "unknown", "unknown",
         "Its connections to others broke: {sign}."),
    Rule("peer_failure", (*PEERS, "aborted"), "failed", "unknown", "unknown",
         "Its connections to others broke, and nothing here tells why.",
         unless=("completed",)),
    Rule("pipe_closed", ("pipe_closed",), "failed", "user", "rank",
         "{Ranks} stopped by a write to a pipe or socket whose reader had gone."),
    Rule("exit", ("exit", "loop_failed"), "failed", "unknown", "rank",
         "Failed with {sign}{ranks} and reported no cause."),
    Rule("peer_failure", ("terminated",), "failed", "unknown", "unknown",
         "Its launcher ended it, for something failed elsewhere.", unless=("completed",)),
    # --- nothing failed
    Rule("success", ("completed",), "succeeded", None, "nobody", "It ended without an error."),
    Rule("success", ("exit_ok", "loop_done"), "succeeded", None, "nobody",
         "It ended without an error.", extent="all"),
    Rule("unknown", (), "unknown", "unknown", "unknown",
         "Nothing tells what became of it."),
)
# fmt: on


def cause_of(sign: str) -> str:
    """The name of the rule that decides where a sign is all that is known."""
    return next((rule.name for rule in RULES if sign in rule.signs and not rule.also), sign)
