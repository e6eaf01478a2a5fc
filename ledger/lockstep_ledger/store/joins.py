"""Ids that share an alias are one job; one number of two schedulers is two."""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, select, update

from lockstep_ledger.ingest.speakers import Speaker, may_join
from lockstep_ledger.merge.counted import Booked, Effects
from lockstep_ledger.merge.precedence import SCHEDULER
from lockstep_ledger.merge.spans import MAX_SPARE_NODES
from lockstep_ledger.store import job_states
from lockstep_ledger.store.database import chunks_of
from lockstep_ledger.store.job_states import ID_PREFIX, JobState, Key, KnownJobs
from lockstep_ledger.store.job_work import JobWork
from lockstep_ledger.store.tables import aliases, amendments, events, jobs
from lockstep_records.events.bounds import is_printable
from lockstep_records.events.event import Event

_STATING = frozenset({"job_submitted", "job_started"})
_MAX_ALIASES = 20
WISH_PREFIX = "wish:"
"""Of an alias that nodes of a user state, and the user's id."""
_OWN_PREFIXES = (ID_PREFIX, WISH_PREFIX)
_BY = "\n"
"""Between a node and a user; no name of a node holds it."""


def aliases_of(event: Event) -> list[str]:
    """Other names of the job: of a start or submission, and of any word of a scheduler."""
    stated = event.fields.get("aliases")
    if not isinstance(stated, list) or (event.source and event.kind not in _STATING):
        return []
    names = [name for name in stated if isinstance(name, str) and name and is_printable(name)]
    return [name for name in names[:_MAX_ALIASES] if not name.startswith(_OWN_PREFIXES)]


def instance_of(event: Event) -> str:
    """Name of the Slurm that the job's own number is of; empty where nobody says."""
    for alias in aliases_of(event):
        scheme, _, rest = alias.partition(":")
        name, _, number = rest.partition(":")
        if scheme == "slurm" and number == event.job_id:
            return name
    return ""


def _voice(source: str, owner: int | None) -> str:
    """A node and the user for whom it speaks: what it says for one names nothing of another."""
    return source if owner is None else f"{source}{_BY}{owner}"


@dataclass(slots=True)
class Joins:
    """Finds the job of an event, and joins and parts jobs in a transaction."""

    memory: KnownJobs
    connection: Connection
    effects: Effects
    changed: dict[int, JobState]
    rows: list[dict[str, Any]]

    def locate(self, event: Event) -> Event:
        """The event under the id of its job: the second scheduler with one number has its name."""
        job = self.memory.get(event.key)
        if job is None:
            return event
        own = job.facts.instances.get(SCHEDULER)
        instance = instance_of(event)
        if event.source:
            instance = instance or job.facts.instances.get(_voice(event.source, event.owner), "")
        if not instance or own in {None, instance}:
            return event
        twin = replace(event, job_id=f"{event.job_id}@{instance}")
        is_there = self.memory.find(self.connection, twin.key) is not None
        return twin if is_there or event.source == SCHEDULER else event

    def note(self, job: JobState, event: Event, speaker: Speaker) -> JobState:
        """Notes the names that an event states; the job that it is of then."""
        # What a stranger or another node said counts no more, or what one said early counts.
        if job.facts.note_uid(event) | job.facts.note_place(event):
            self._begin_anew(job)
        if not (names := aliases_of(event)):
            return job
        instance = instance_of(event)
        twin_id, _, twin_instance = event.job_id.rpartition("@")
        if event.source == SCHEDULER and instance:
            same = {n for n, i in job.facts.instances.items() if i == instance}
            for node in same:
                del job.facts.instances[node]
            job.facts.instances.setdefault(SCHEDULER, instance)
        elif instance and instance != job.facts.instances.get(SCHEDULER):
            job.facts.instances[_voice(event.source, event.owner)] = instance
        elif twin_id:
            plain = self.memory.find(self.connection, (event.key[0], twin_id))
            if plain is not None and event.source == SCHEDULER:
                self._hand_over(f"slurm:{twin_instance}:{twin_id}", plain, job)
                named = plain.facts.instances.items()
                self._part(plain, job, {n for n, i in named if n and i == twin_instance})
            elif plain is not None and (event.owner is not None or speaker.scope == "operator"):
                self._name_twin(plain, event, twin_instance)
                self._part(plain, job, {_voice(event.source, event.owner)})
        for alias in names:
            job = self._claim(job, (event.key[0], alias), event, speaker)
        return job

    def _claim(self, job: JobState, alias: Key, event: Event, speaker: Speaker) -> JobState:
        """Gives an alias to a job, or makes it one with who has it.

        A node's claim that joins nothing is kept as a wish: the verdict is the same whether the
        scheduler has spoken before it or speaks later.
        """
        holder, is_scheduler = self.memory.holder(self.connection, alias), not event.source
        # A node that the scheduler does not name for a job gives it no name either.
        if holder == job.number or not (is_scheduler or job.facts.weighs(event)):
            return job
        other = None if holder is None else self.memory.find_number(self.connection, holder)
        if other is not None and may_join((job.facts.owner, other.facts.owner), speaker):
            return self._join(*sorted((job, other), key=lambda each: each.number))
        wish = (alias[0], f"{WISH_PREFIX}{job.facts.owner}:{alias[1]}"[:450])
        if not is_scheduler:
            self._wish(job, wish)
        if other is None or (is_scheduler and SCHEDULER not in other.sources):
            self._take(job, alias, other)
        wisher = self.memory.holder(self.connection, wish) if is_scheduler else None
        if wisher is None or wisher == job.number:
            return job
        other = self.memory.find_number(self.connection, wisher)
        is_own = None is not job.facts.owner == other.facts.owner
        return self._join(*sorted((job, other), key=lambda each: each.number)) if is_own else job

    def _wish(self, job: JobState, wish: Key) -> None:
        wishes = job.facts.wishes
        if job.facts.owner is None or wish[1] in wishes or len(wishes) >= _MAX_ALIASES:
            return
        if self.memory.holder(self.connection, wish) is None:
            self.memory.claim(wish, job.number)
            wishes.append(wish[1])

    def _take(self, job: JobState, alias: Key, other: JobState | None) -> None:
        """Gives an alias that nobody has, or that a scheduler has for itself, to a job."""
        if len(job.facts.aliases) >= _MAX_ALIASES:
            return
        if other is not None and alias[1] in other.facts.aliases:
            other.facts.aliases.remove(alias[1])
            self.changed[other.number] = other
        self.memory.claim(alias, job.number)
        job.facts.aliases.append(alias[1])

    def _name_twin(self, plain: JobState, event: Event, instance: str) -> None:
        """What a node says next under the plain number is of the twin, for the same user."""
        instances, voice = plain.facts.instances, _voice(event.source, event.owner)
        most = MAX_SPARE_NODES + (plain.facts.value("num_nodes") or 0)
        if voice in instances or len(instances) < most:
            instances[voice] = instance
            self.changed[plain.number] = plain

    def _part(self, plain: JobState, twin: JobState, voices: Collection[str]) -> None:
        """Gives the second scheduler's job what its nodes said of its user under the number."""
        own = []
        for some in chunks_of(sorted({voice.partition(_BY)[0] for voice in voices})):
            of_nodes = (events.c.job == plain.number, events.c.node.in_(some))
            query = select(events.c.sequence, events.c.node, events.c.body).where(*of_nodes)
            own += [row.sequence for row in self.connection.execute(query)
                    if _voice(row.node, json.loads(row.body).get("owner")) in voices]  # fmt: skip
        later = [each for each in plain.pending if _voice(each.source, each.owner) in voices]
        if not own and not later:
            return
        self._begin_anew(plain, twin)
        for numbers in chunks_of(own):
            moved = update(events).where(events.c.sequence.in_(numbers))
            self.connection.execute(moved.values(job=twin.number))
        identities = {each.id for each in later}
        for row in self.rows:
            if row["job"] == plain.number and row["id"] in identities:
                row["job"] = twin.number
        twin.pending += later
        plain.pending = [each for each in plain.pending if each.id not in identities]

    def _hand_over(self, alias: str, plain: JobState, twin: JobState) -> None:
        """Gives the twin the alias that its nodes stated before it was known."""
        if alias in plain.facts.aliases:
            plain.facts.aliases.remove(alias)
            twin.facts.aliases.append(alias)
            self.memory.claim((plain.facts.cluster, alias), twin.number)
            self.changed[plain.number] = plain

    def _begin_anew(self, *states: JobState) -> None:
        for state in states:
            if not state.begins_anew:
                rows = JobWork(state, self.connection, self.effects).stream_rows()
                self.effects.count(state.facts.booked.group, rows, sign=-1)
            state.begins_anew = True
            self.changed[state.number] = state

    def _join(self, state: JobState, gone: JobState) -> JobState:
        facts, other = state.facts, gone.facts
        self._begin_anew(state, gone)
        self.memory.save_claims(self.connection)
        for table in (events, amendments, aliases):
            own = table.c.job == gone.number
            self.connection.execute(update(table).where(own).values(job=state.number))
        job_states.remove(self.connection, gone.number)
        self.connection.execute(delete(jobs).where(jobs.c.number == gone.number))
        self.memory.replace(gone, state)
        facts.owner = other.owner if facts.owner is None else facts.owner
        facts.ids = {**other.ids, **facts.ids}
        facts.holder = facts.holder or other.holder
        facts.is_scheduled |= other.is_scheduled
        facts.nodes, facts.claimants = facts.nodes | other.nodes, facts.claimants | other.claimants
        facts.aliases, facts.wishes = facts.aliases + other.aliases, facts.wishes + other.wishes
        facts.instances = {**other.instances, **facts.instances}
        facts.booked = self._join_booked(facts.booked, other.booked)
        for name in facts.ids:
            alias = (facts.cluster, f"{ID_PREFIX}{name}")
            if self.memory.holder(self.connection, alias) is None:
                self.memory.claim(alias, state.number)
        state.pending += gone.pending
        for row in self.rows:
            row["job"] = state.number if row["job"] == gone.number else row["job"]
        self.changed.pop(gone.number, None)
        return state

    def _join_booked(self, booked: Booked, other: Booked) -> Booked:
        """What both have booked, where it is one group; else the other's is taken back."""
        self.effects.count(other.group, other.rows, sign=-1)
        observed = sorted({*booked.observed, *other.observed})
        counts = dict(booked.counts)
        if not counts:
            return Booked(other.group, other.counts, booked.rows, observed)
        for key, amount in other.counts:
            if booked.group == other.group:
                counts[key] = counts.get(key, 0.0) + amount
            else:
                self.effects.amend(key[0], other.group, amount)
        return Booked(booked.group, list(counts.items()), booked.rows, observed)
