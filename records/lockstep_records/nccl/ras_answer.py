"""Answers of NCCL's status socket (RAS) as frozen values within bounds."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MAX_COMMUNICATORS, MAX_RANKS, MAX_FUNCTIONS = 1 << 16, 1 << 20, 32
"""Most communicators of an answer, ranks in all of them, and functions of a communicator."""
ANY_FUNCTION = "collective"
"""Function of the counts that NCCL before 2.26 sums up."""
State = Literal["starting", "running", "ending", "aborted", "failed"]
Absence = Literal["dead", "silent", "left"]
"""Why a rank of a communicator is missing: nobody has reached its process for a minute; its process
does not answer; its process answers, and is not, or no longer, in the communicator."""


class RasError(ValueError):
    """An answer that cannot be read; one sentence without the name of its source."""


class LargeAnswerError(RasError):
    """An answer of more bytes or ranks than are read; text has fewer of both."""


@dataclass(frozen=True, slots=True, order=True)
class ProcessDevice:
    """A process and the node's number of its GPU; empty and -1 where unknown."""

    host: str = ""
    pid: int = -1
    device: int = -1

    def __str__(self) -> str:
        """The process for people; empty where it is unknown."""
        parts = [f"pid {self.pid}"] if self.pid >= 0 else []
        text = " on ".join([*parts, self.host] if self.host else parts)
        return f"{text}, GPU {self.device}" if text and self.device >= 0 else text


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLaunches:
    """A rank of a communicator, by its number there.

    Attributes:
        counts: collectives launched, by function; only those of which the answer says it.
        error: that it reports, in NCCL's words.
    """

    rank: int
    process: ProcessDevice
    counts: Mapping[str, int]
    state: State = "running"
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingRank:
    """A rank of a communicator of which the answer has no counts."""

    rank: int
    process: ProcessDevice
    absence: Absence


@dataclass(frozen=True, slots=True)
class Crowd:
    """Ranks that a text counts and does not name: so many have launched so much of a function."""

    function: str
    launched: int
    num_ranks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Communicator:
    """A communicator.

    Attributes:
        name: hash, 16 hexadecimal digits; empty for processes that are in none any more.
        size: ranks it has; 0 where unknown.
        ranks: that answered; in a text those that it names.
        crowds: of a text.
    """

    name: str
    size: int
    ranks: tuple[RankLaunches, ...] = ()
    missing: tuple[MissingRank, ...] = ()
    crowds: tuple[Crowd, ...] = ()

    @property
    def members(self) -> tuple[RankLaunches | MissingRank, ...]:
        """The ranks that an answer names, with and without counts."""
        return (*self.ranks, *self.missing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a job answered.

    Attributes:
        version: numbers of NCCL's version.
        time: local time, ``YYYY-MM-DD HH:MM:SS``; empty where the answer has none.
        communicators: in a text only those with something to say, in JSON all.
        num_communicators: of all.
        world_size: ranks of the largest communicator; 0 without one, and in a text of several.
        num_timeouts: of processes that were asked on behalf of this answer.
        is_text: whether it names outliers only.
    """

    version: tuple[int, ...]
    communicators: tuple[Communicator, ...]
    num_communicators: int
    world_size: int
    time: str = ""
    num_timeouts: int = 0
    is_text: bool = False

    @property
    def world(self) -> tuple[RankLaunches | MissingRank, ...]:
        """The named ranks of the communicator of all; empty where none is known to be that."""
        largest = max(self.communicators, key=lambda each: each.size, default=None)
        return largest.members if largest and largest.size == self.world_size > 0 else ()


_LEAST_VERSION = (2, 28, 7)
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+.\w]{0,32})")


def parse_version(text: str) -> tuple[int, ...]:
    """The numbers of a version; RasError where it is none."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise RasError(f"{text!r:.60} is not a version of NCCL")
    return tuple(int(number or 0) for number in match.groups())


def may_be_asked(version: tuple[int, ...]) -> bool:
    """Whether nobody knows of a job that asking this version has crashed (NVIDIA/nccl#1718)."""
    return version >= _LEAST_VERSION


def read_process(host: str, pid: int | str, device: int | str) -> ProcessDevice:
    """The process. NCCL writes addresses as numbers, and ``unknown`` where it finds none."""
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        host = ""
    return ProcessDevice(host, int(pid), int(device))
