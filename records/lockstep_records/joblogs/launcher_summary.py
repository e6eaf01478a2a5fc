"""Exits that a launcher tells: torchrun's list of failures, DeepSpeed's and MPI's last words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep_records.joblogs.prefix import Who

SUMMARY = frozenset(
    {"root_cause", "summary_rank", "summary_host", "summary_exit", "agent_exit", "mpi_exit"}
)
_MOST_VOICES = 100_000
_ABORTED = "6"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exited:
    """An exit; ``root`` when the launcher calls it the first failure."""

    code: int
    root: bool = False
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What tells it from others."""
        return f"{self.code}{' first' if self.root else ''}{'' if self.ranks else ' somewhere'}"


@dataclass(slots=True)
class _Entry:
    root: bool = False
    rank: int | None = None
    node: str | None = None


@dataclass(slots=True)
class Summary:
    """The entry that each launcher is printing, a field a line."""

    entries: dict[Who, _Entry] = field(default_factory=dict)

    def take(self, name: str, match: re.Match[str], who: Who) -> Iterator[Exited]:
        """Takes one of its lines; gives the exit when that line completes one."""
        if name == "agent_exit":
            yield Exited(code=int(match["code"] or match["code2"]))
            return
        if name == "mpi_exit":
            rank = int(match["rank"] or match["rank2"])
            code = -int(match["signal"] or _ABORTED)
            yield Exited(code=code, root=True, ranks=(rank,))
            return
        if len(self.entries) >= _MOST_VOICES:
            return
        entry = self.entries.setdefault(who, _Entry())
        if name == "root_cause":
            entry.root = True
        elif name == "summary_host":
            entry.node = match["node"]
        elif name == "summary_rank":
            entry.rank = int(match["rank"])
        elif entry.rank is not None:
            yield Exited(
                code=int(match["code"]),
                root=entry.root,
                ranks=(entry.rank,),
                nodes=() if entry.node is None else (entry.node,),
            )
            self.entries[who] = _Entry(root=entry.root)
