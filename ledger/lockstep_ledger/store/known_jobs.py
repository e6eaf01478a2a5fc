"""The jobs in the writer's memory, by their ids and by the other names that events gave them."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, bindparam, select

from lockstep_ledger.store import job_states
from lockstep_ledger.store.database import rows_by_name
from lockstep_ledger.store.job_states import JobState
from lockstep_ledger.store.tables import aliases, jobs

ID_PREFIX = "id:"
"""Of an alias that is an id which the job had before it was joined."""
_JOBS = select(jobs.c.cluster, jobs.c.job_id, jobs.c.number, jobs.c.facts, jobs.c.state)
_ID_QUERY = _JOBS.where(jobs.c.job_id.in_(bindparam("names", expanding=True)))
_NUMBER_QUERY = _JOBS.where(jobs.c.number == bindparam("number"))
_ALIASES = select(aliases).where(aliases.c.alias.in_(bindparam("names", expanding=True)))
Key = tuple[str, str]
"""Cluster, and id or alias."""


class KnownJobs:
    """Jobs by number, the one that was used last last, and names that lead to them."""

    def __init__(self) -> None:
        self._states: dict[int, JobState] = {}
        self._numbers: dict[Key, int] = {}
        self._aliases: dict[Key, int | None] = {}
        self._claimed: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._states)

    def clear(self) -> None:
        """Forgets everything."""
        for held in (self._states, self._numbers, self._aliases, self._claimed):
            held.clear()

    def trim(self, most: int) -> None:
        """Forgets the jobs that were used least lately, and names where they are too many."""
        for number in list(self._states)[: max(0, len(self) - most)]:
            del self._states[number]
        if len(self._numbers) + len(self._aliases) > 10 * most:
            self._numbers.clear()
            self._aliases.clear()

    def read(self, connection: Connection, keys: Collection[Key]) -> None:
        """Reads the jobs of ids that are not in memory."""
        missing = {key for key in keys if self.get(key) is None}
        for row in rows_by_name(connection, _ID_QUERY, {job_id for _, job_id in missing}):
            self._load(connection, row)
        earlier = {
            (c, f"{ID_PREFIX}{job_id}") for c, job_id in missing if not self.get((c, job_id))
        }
        self.read_aliases(connection, earlier)
        for cluster, name in earlier:
            number = self._aliases[cluster, name]
            if number is not None:
                self._numbers[cluster, name.removeprefix(ID_PREFIX)] = number
                self.find_number(connection, number)

    def get(self, key: Key) -> JobState | None:
        """A job in memory."""
        state = self._states.get(self._numbers.get(key, 0))
        if state is not None:  # used last is dropped last
            self._states[state.number] = self._states.pop(state.number)
        return state

    def find(self, connection: Connection, key: Key) -> JobState | None:
        """A job, in memory or in the store."""
        self.read(connection, (key,))
        return self.get(key)

    def find_number(self, connection: Connection, number: int) -> JobState:
        """A job of the store."""
        if number not in self._states:
            self._load(connection, connection.execute(_NUMBER_QUERY, {"number": number}).one())
        return self._states[number]

    def add(self, key: Key, state: JobState) -> None:
        """Takes a new job, or another id of one."""
        self._states[state.number] = state
        self._numbers[key] = state.number

    def drop(self, key: Key) -> None:
        """Lets a job be read again."""
        self._states.pop(self._numbers.get(key, 0), None)

    def replace(self, gone: JobState, state: JobState) -> None:
        """Lets all names of a job lead to another."""
        self._states.pop(gone.number, None)
        for names in (self._numbers, self._aliases):
            names.update({name: state.number for name, n in names.items() if n == gone.number})

    def holder(self, connection: Connection, alias: Key) -> int | None:
        """Number of the job that has an alias."""
        self.read_aliases(connection, {alias})
        return self._aliases[alias]

    def claim(self, alias: Key, number: int) -> None:
        """Gives an alias to a job; ``save_claims`` writes it."""
        self._aliases[alias] = self._claimed[alias] = number

    def save_claims(self, connection: Connection) -> None:
        """Writes the aliases that were given to jobs."""
        rows = [{"cluster": c, "alias": a, "job": n} for (c, a), n in self._claimed.items()]
        job_states.upsert(connection, aliases, ("cluster", "alias"), rows)
        self._claimed.clear()

    def read_aliases(self, connection: Connection, names: Collection[Key]) -> None:
        """Reads who has names that are not in memory."""
        missing = {name for name in names if name not in self._aliases}
        self._aliases.update(dict.fromkeys(missing))
        for row in rows_by_name(connection, _ALIASES, {alias for _, alias in missing}):
            self._aliases[row.cluster, row.alias] = row.job

    def _load(self, connection: Connection, row: Any) -> None:
        self._numbers[row.cluster, row.job_id] = row.number
        if row.number not in self._states:
            self._states[row.number] = job_states.load(connection, row)
