"""Attacks by rank pages, their names and their folders."""

import os
import struct
from collections.abc import Callable
from typing import Any

from lockstep_records.page.layout import HEARTBEAT_OFFSET, IDENTITY, PERIODIC, SLOT, Section
from tenants.table import SLOW_TIER_SECONDS, Attack, Ground, attack, register

_NAN = struct.pack("<d", float("nan"))
_INFINITY = struct.pack("<d", float("inf"))
_LARGEST = struct.pack("<d", 1.7e308)
_ONES = b"\xff" * 8
_LOWEST = struct.pack("<q", -(2**63))


def _filled(section: Section, word: bytes) -> Callable[[Ground], None]:
    return lambda ground: ground.fill(ground.page(), section, word)


def _set(section: Section, code: str, **values: Any) -> Callable[[Ground], None]:
    return lambda ground: ground.patch(ground.page(), section, code, **values)


_WORDS = {
    "nan": (_NAN, "NaN"),
    "infinity": (_INFINITY, "infinity"),
    "largest": (_LARGEST, "1.7e308, so that sums overflow"),
    "ones": (_ONES, "2^64 - 1, all fields present"),
    "lowest": (_LOWEST, "-2^63"),
    "zeros": (b"\0" * 8, "zero, all optional fields absent"),
}
for _section, _title in ((SLOT, "state"), (PERIODIC, "periodic")):
    for _word, (_bytes, _words) in _WORDS.items():
        register(
            Attack(
                f"{_title}_of_{_word}",
                "pages",
                f"a page under valid checksums whose {_title} section holds {_words} in each field",
                _filled(_section, _bytes),
                seconds=SLOW_TIER_SECONDS,
            )
        )

_IDENTITIES: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("rank_negative", "the rank -2^31", "i", {"rank": -(2**31)}),
    ("rank_largest", "the rank 2^31 - 1", "i", {"rank": 2**31 - 1}),
    ("world_of_nobody", "a world size of 0", "i", {"world_size": 0}),
    ("world_of_all", "a world size of 2^31 - 1", "i", {"world_size": 2**31 - 1}),
    ("attempt_negative", "the attempt -1", "i", {"attempt": -1}),
    ("attempt_largest", "the attempt 2^31 - 1", "i", {"attempt": 2**31 - 1}),
    ("position_missing", "no value for the rank's position", "i", {"local_rank": -1, "dp": -1}),
    ("process_zero", "the process 0", "i", {"pid": 0}),
    ("process_negative", "the process -1", "i", {"pid": -1}),
    ("process_init", "process 1 as its rank", "i", {"pid": 1, "locked": 0}),
    ("rows_none", "a ring of 0 rows", "I", {"row_count": 0}),
    ("rows_most", "a ring of 2^32 - 1 rows", "I", {"row_count": 2**32 - 1}),
    ("row_bytes_none", "rows of 0 bytes", "I", {"row_bytes": 0}),
    ("slot_bytes_most", "slots of 2^32 - 1 bytes", "I", {"slot_bytes": 2**32 - 1}),
    ("version_unknown", "the version 2^32 - 1", "I", {"version": 2**32 - 1}),
    ("start_of_time", "a start at -2^63 ns", "q", {"start_wall_ns": -(2**63)}),
    ("end_of_time", "a start at 2^63 - 1 ns", "q", {"start_monotonic_ns": 2**63 - 1}),
    ("name_not_utf8", "a job id that is not UTF-8", "s", {"job_id": b"\xff\xfe\xed\xa0\x80"}),
    ("name_of_controls", "control characters as job id", "s", {"job_id": b"\x1b[2J\n\r\x07"}),
    ("name_of_quotes", "quotes and a line end as job id", "s", {"job_id": b'"} 1\nup{a="\\'}),
    ("name_empty", "an empty job id", "s", {"job_id": b"\0" * 128}),
    ("names_unbounded", "names without a final zero", "s", {"project": b"x" * 192}),
    ("project_of_controls", "control characters as project", "s", {"project": b"\x1b]0;x\x07\n"}),
)
for _name, _words, _code, _values in _IDENTITIES:
    register(
        Attack(
            f"page_{_name}",
            "pages",
            f"a page under valid checksums with {_words}",
            _set(IDENTITY, _code, **_values),
            seconds=SLOW_TIER_SECONDS,
        )
    )


def _each_alone(section: Section, turn: int) -> Callable[[Ground], None]:
    """One page for each optional field: it alone is known, or it alone is missing."""

    def act(ground: Ground) -> None:
        for number, bit in enumerate(section.presence.values()):
            page = ground.page(number, rows=4)
            ground.patch(page, section, "Q", present=(2**64 - 1) * turn ^ bit)

    return act


for _section, _title in ((SLOT, "state"), (PERIODIC, "periodic")):
    for _turn, _words in enumerate(("known alone", "missing alone")):
        register(
            Attack(
                f"{_title}_field_{_words.replace(' ', '_')}",
                "pages",
                f"pages of 25 KB, each with one field of the {_title} section {_words}",
                _each_alone(_section, _turn),
                seconds=SLOW_TIER_SECONDS,
            )
        )


@attack("pages")
def neighbours_job_id(ground: Ground) -> None:
    """A valid page with the neighbour's job id and rank, in a folder of the attacker."""
    ground.page(0, job_id="victim")


@attack("pages")
def neighbours_job_id_new_ranks(ground: Ground) -> None:
    """Ranks 4 to 7 under the neighbour's job id, in a folder of the attacker."""
    for number in range(4, 8):
        ground.page(number, job_id="victim", project="stolen")


@attack("pages", seconds=SLOW_TIER_SECONDS)
def neighbours_process(ground: Ground) -> None:
    """A page that calls the neighbour's process its rank."""
    ground.patch(ground.page(), IDENTITY, "i", pid=ground.victim_pids[0])


@attack("pages", seconds=SLOW_TIER_SECONDS)
def neighbours_gpu(ground: Ground) -> None:
    """A page that claims a GPU of which it has no process."""
    ground.page(gpu_uuid="GPU-00000000-0000-0000-0000-000000000001")


@attack("pages")
def heartbeat_of_the_future(ground: Ground) -> None:
    """A heartbeat of 2^64 - 1, in a phase that has no name."""
    descriptor = os.open(ground.page(), os.O_RDWR)
    ground.held.append(descriptor)
    os.pwrite(descriptor, _ONES, HEARTBEAT_OFFSET)


@attack("pages", seconds=SLOW_TIER_SECONDS)
def arrays_beyond_their_length(ground: Ground) -> None:
    """Late losses and fingerprints counted to 2^64 - 1, all NaN."""
    values = {"late_losses": 2**64 - 1, "fingerprints": 2**64 - 1}
    page = ground.page()
    ground.patch(page, PERIODIC, "Q", **values, present=2**64 - 1)
    ground.patch(page, PERIODIC, "Q", late_loss=_NAN * 8, fingerprint_step=_LOWEST * 8)
