"""Exits that a launcher reports: torchrun's list of failures, DeepSpeed's and MPI's last lines."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep_outcomes.joblogs.reading.prefix import Origin

SUMMARY_KINDS = frozenset(
    {"root_cause", "summary_rank", "summary_host", "summary_exit", "agent_exit", "mpi_exit"}
)
_MOST_ORIGINS = 100_000
# MPI_ABORT ends the process by SIGABRT.
_ABORTED = "6"


@dataclass(frozen=True, kw_only=True, slots=True)
class LauncherExit:
    """The exit of ranks; ``root`` when the launcher calls it the first failure."""

    code: int
    root: bool = False
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What distinguishes it from other exits."""
        return f"{self.code}{' first' if self.root else ''}{'' if self.ranks else ' somewhere'}"


@dataclass(slots=True)
class _Entry:
    root: bool = False
    rank: int | None = None
    node: str | None = None


@dataclass(slots=True)
class ExitSummary:
    """The entry that each launcher is printing, one field a line."""

    entries: dict[Origin, _Entry] = field(default_factory=dict)

    def add_line(self, name: str, match: re.Match[str], origin: Origin) -> Iterator[LauncherExit]:
        """Adds one line; yields the exit when that line completes one."""
        if name == "agent_exit":
            yield LauncherExit(code=int(match["code"] or match["code2"]))
            return
        if name == "mpi_exit":
            rank = int(match["rank"] or match["rank2"])
            code = -int(match["signal"] or _ABORTED)
            yield LauncherExit(code=code, root=True, ranks=(rank,))
            return
        if len(self.entries) >= _MOST_ORIGINS:
            return
        entry = self.entries.setdefault(origin, _Entry())
        if name == "root_cause":
            entry.root = True
        elif name == "summary_host":
            entry.node = match["node"]
        elif name == "summary_rank":
            entry.rank = int(match["rank"])
        elif entry.rank is not None:
            yield LauncherExit(
                code=int(match["code"]),
                root=entry.root,
                ranks=(entry.rank,),
                nodes=() if entry.node is None else (entry.node,),
            )
            self.entries[origin] = _Entry(root=entry.root)
