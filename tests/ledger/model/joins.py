"""Which ids are one job: aliases join them, owners and schedulers of one name keep them apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .arrivals import Fact

Token = tuple[str, str]
"""Cluster and id, or cluster and alias."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JoinedJob:
    """All facts of a job in order, under each id and alias that answers."""

    cluster: str
    job_id: str
    ids: frozenset[str]
    facts: Sequence[Fact]


def jobs_of(facts: Sequence[Fact]) -> list[JoinedJob]:
    ids = _instance_ids(facts)
    owners = _owners(facts, ids)
    admitted = [f for f in facts if f.owner is None or f.owner == owners[f.cluster, ids[f.id]]]
    parent = _link(admitted, ids, owners)
    groups: dict[Token, list[Fact]] = defaultdict(list)
    for fact in admitted:
        groups[_root(parent, (fact.cluster, ids[fact.id]))].append(fact)
    names: dict[Token, set[str]] = defaultdict(set)
    for token in list(parent):
        names[_root(parent, token)].add(token[1].removeprefix("alias "))
    return [
        JoinedJob(
            cluster=root[0],
            job_id=_canonical(group, ids),
            ids=frozenset(names[root] | {ids[fact.id] for fact in group}),
            facts=group,
        )
        for root, group in groups.items()
    ]


def _aliases(fact: Fact) -> list[str]:
    """Aliases of a start or submission, and of every word of a scheduler."""
    if fact.node and fact.kind not in {"job_submitted", "job_started"}:
        return []
    return [alias for alias in fact.fields.get("aliases") or () if isinstance(alias, str)]


def _instance(fact: Fact) -> str | None:
    """Name of the Slurm that a fact's own number is of."""
    for alias in _aliases(fact):
        scheduler, _, rest = alias.partition(":")
        name, _, number = rest.partition(":")
        if scheduler == "slurm" and number == fact.job_id:
            return name
    return None


def _instance_ids(facts: Sequence[Fact]) -> dict[str, str]:
    """The job id of each fact, with the name of the instance where two use one number."""
    instances: dict[Token, list[str]] = defaultdict(list)
    by_node: dict[tuple[str, str, str], str] = {}
    for fact in sorted(facts, key=lambda each: each.order):
        name = _instance(fact)
        if name is not None and fact.node:
            by_node.setdefault((fact.cluster, fact.job_id, fact.node), name)
        elif name is not None and name not in instances[fact.cluster, fact.job_id]:
            instances[fact.cluster, fact.job_id].append(name)
    ids = {}
    for fact in facts:
        names = instances.get((fact.cluster, fact.job_id), [])
        of_node = by_node.get((fact.cluster, fact.job_id, fact.node))
        name = of_node if fact.node else _instance(fact)
        is_second = name is not None and name in names[1:]
        ids[fact.id] = f"{fact.job_id}@{name}" if is_second else fact.job_id
    return ids


def _owners(facts: Sequence[Fact], ids: Mapping[str, str]) -> dict[Token, int]:
    """The owner of each id: whoever was heard first."""
    owners: dict[Token, int] = {}
    for fact in sorted(facts, key=lambda each: each.order):
        if fact.owner is not None:
            owners.setdefault((fact.cluster, ids[fact.id]), fact.owner)
    return owners


def _link(
    facts: Sequence[Fact], ids: Mapping[str, str], owners: Mapping[Token, int]
) -> dict[Token, Token]:
    """Joins ids with their aliases: the scheduler's words first, then the nodes' of one owner."""
    parent: dict[Token, Token] = {}
    owner_of_root: dict[Token, int] = {}
    for fact in facts:
        token = (fact.cluster, ids[fact.id])
        parent.setdefault(token, token)
        if token in owners:
            owner_of_root[token] = owners[token]
    stating = sorted(facts, key=lambda each: (bool(each.node), each.order))
    for fact in stating:
        for alias in _aliases(fact):
            token = (fact.cluster, f"alias {alias}")
            parent.setdefault(token, token)
            pair = (_root(parent, (fact.cluster, ids[fact.id])), _root(parent, token))
            found = {owner_of_root[root] for root in pair if root in owner_of_root}
            if pair[0] != pair[1] and len(found) < 2:
                parent[pair[0]] = pair[1]
                owner_of_root.update((pair[1], owner) for owner in found)
    return parent


def _root(parent: Mapping[Token, Token], token: Token) -> Token:
    while parent[token] != token:
        token = parent[token]
    return token


def _canonical(facts: Sequence[Fact], ids: Mapping[str, str]) -> str:
    by_scheduler = [fact for fact in facts if not fact.node]
    if by_scheduler:
        return ids[by_scheduler[0].id]
    return ids[min(facts, key=lambda fact: fact.order).id]
