"""Speakers and the one table of what each may say, for every statement that reaches the ledger.

A speaker is made at the door, of the token and of the frame of its delivery. Nothing that an event
says of itself changes it, and what is unknown matches nothing.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from lockstep_ledger.merge.facts import UNVOUCHED
from lockstep_records.events.event import Event
from lockstep_records.events.kinds import EDGE_KINDS, KINDS

Scope = Literal["operator", "scheduler", "agent", "launcher"]
Relation = Literal["new", "own", "begun", "unclaimed", "unknown", "foreign"]
RELATIONS: dict[Relation, str] = {
    "new": "nobody has spoken of the job",
    "own": "its user id is known, and is the speaker's",
    "begun": "nobody's user id is known, and this token began it",
    "unclaimed": "the speaker's user id is known, the job's is not",
    "unknown": "the speaker's user id is not known, and the job is somebody else's",
    "foreign": "both are known and differ",
}
SPEAKER = "speaker"
"""Member of a dead letter beside those of its event."""
DESCRIBING = frozenset({"job_submitted", "job_started"})
_QUEUE_KINDS = frozenset(
    {"job_submitted", "job_preempted", "job_requeued", "resources_allocated", "resources_released"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What speakers of a scope may say.

    Attributes:
        relations: to the jobs of which they may say the others.
        has_node: whether a statement is of the speaker's own node alone.
        vouches: whether the bill takes their words on money; else a token's ``projects=`` does.
    """

    refused: frozenset[str]
    relations: frozenset[Relation]
    has_node: bool
    vouches: bool


_ANY = frozenset[Relation](RELATIONS)
RULES: dict[Scope, Rule] = {
    # Also an open ledger's nodes, whose events have the user of the folder.
    "operator": Rule(
        refused=frozenset(), relations=_ANY - {"foreign"}, has_node=False, vouches=True
    ),
    "scheduler": Rule(
        refused=frozenset(KINDS) - EDGE_KINDS - {"node_event"},
        relations=_ANY, has_node=False, vouches=True,
    ),
    "agent": Rule(
        refused=_QUEUE_KINDS, relations=_ANY - {"unknown", "foreign"}, has_node=True, vouches=False
    ),
    "launcher": Rule(
        refused=_QUEUE_KINDS | {"node_event"}, relations=frozenset({"new", "own", "begun"}),
        has_node=True, vouches=False,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Speaker:
    """Who brought a delivery.

    Attributes:
        cluster, node: of its frame; the node is empty of whoever speaks for none.
        uid: of a launcher, by its token; an agent reads one of each folder on its node.
        token: begin of the digest of the token; empty without one.
        is_pinned: whether the first node that the token speaks of is the only one.
        clusters, projects: the only ones of which it may speak; all where None.
    """

    scope: Scope = "operator"
    cluster: str = ""
    node: str = ""
    uid: int | None = None
    token: str = ""
    is_pinned: bool = False
    clusters: frozenset[str] | None = None
    projects: frozenset[str] | None = None

    def __str__(self) -> str:
        words = [self.scope, self.token and f"token {self.token}", self.node and f"of {self.node}"]
        return " ".join(filter(None, words))

    @property
    def may_feed(self) -> bool:
        """Whether it may tell how far a feed is; others could hide that one is away."""
        return not RULES[self.scope].has_node

    def signature(self) -> dict[str, Any]:
        """What a letter keeps of it: what is delivered again has its speaker."""
        return {SPEAKER: msgspec.to_builtins(self)}

    def objection(self, event: Event) -> str:
        """Why it may not say this of any job, one sentence; empty where it may of some."""
        rule = RULES[self.scope]
        if event.kind in rule.refused:
            return f"kind {event.kind!r:.80} is not sent by a token of scope {self.scope}"
        cluster = event.cluster or self.cluster
        is_own = event.node in {None, self.node} and event.cluster in {None, self.cluster}
        if rule.has_node and not (is_own and self.node.strip()):
            return (
                f"node {event.node!r:.80} of cluster {event.cluster!r:.80} is not its speaker's,"
                f" {self.node!r:.80} of {self.cluster!r:.80}"
            )
        if self.clusters is not None and cluster not in self.clusters:
            return f"cluster {cluster!r:.80} is not one of this token's"
        if self.projects is not None and event.kind in DESCRIBING:
            project = event.text("project")
            if project not in self.projects:
                return f"project {project!r:.80} is not one of this token's"
        return ""

    def stamped(self, event: Event, time: float, received: float) -> Event:
        """The event as of this speaker: with the place and the user that are known of it."""
        owner = event.owner if self.scope in {"operator", "agent"} else self.uid
        extra = {name: value for name, value in event.extra.items() if name != UNVOUCHED}
        if RULES[self.scope].has_node:
            extra[UNVOUCHED] = not self.projects
        if time != event.time:
            extra["node_time"] = event.time
        return Event(
            kind=event.kind, job_id=event.job_id, attempt=event.attempt, fields=event.fields,
            time=time, id=event.id, node=event.node or self.node, launcher=event.launcher,
            cluster=event.cluster or self.cluster, owner=owner, extra=extra, received=received,
        )  # fmt: skip


OPERATOR = Speaker()
"""Whoever has a shell at the store, an open ledger, or a token without a word."""


def relation(event: Event, holder: str, owner: int | None, speaker: Speaker) -> Relation:
    """How a speaker is related to a job that is known, by its owner and the token that began it."""
    if event.owner is not None and owner is not None:
        return "own" if event.owner == owner else "foreign"
    if owner is None and holder and holder == speaker.token:
        return "begun"
    return "unknown" if event.owner is None else "unclaimed"


def may_join(owners: tuple[int | None, int | None], speaker: Speaker) -> bool:
    """Whether jobs of two owners are one by this speaker's word; unknown is never a match."""
    first, second = owners
    if speaker.scope == "operator":
        return first is None or second is None or first == second
    return first is not None and first == second


def table() -> list[list[Any]]:
    """The table as docs show it: a row a scope, a column a relation."""
    rows = []
    for scope, rule in RULES.items():
        own = ", ".join(f"`{kind}`" for kind in KINDS if kind not in rule.refused)
        kinds = own if rule.refused else "all"
        marks = ["allowed" if name in rule.relations else "refused" for name in RELATIONS]
        money = "counts" if rule.vouches else "without weight"
        rows.append([scope, *marks, money, "its own" if rule.has_node else "any", kinds])
    return rows
