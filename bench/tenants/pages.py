"""Attacks by rank pages, their names and their folders."""

import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep_records.page.layout import HEARTBEAT_OFFSET, IDENTITY, PERIODIC, SLOT
from lockstep_records.page.section import Section

from .table import SLOW_TIER_SECONDS, Attack, Ground, attack, register

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
    ("name_not_utf8", "a job id that is no UTF-8", "s", {"job_id": b"\xff\xfe\xed\xa0\x80"}),
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
                telling=_title == "periodic",
            )
        )


@attack("pages", telling=True)
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


@attack("pages", telling=True)
def invented_clusters(ground: Ground) -> None:
    """400 jobs, each with its own cluster, project, queue and class."""
    for number in range(400):
        job = ground.job(f"{ground.name}-{number}")
        names = {"cluster": f"c{number}", "project": f"p{number}", "queue": f"q{number}"}
        ground.page(0, job, rows=1, **names, job_class=f"k{number}")


@attack("pages", telling=True)
def thousands_of_ranks(ground: Ground) -> None:
    """One job with 4,000 pages of a few rows."""
    page = ground.page(0, rows=1)
    body = page.read_bytes()
    for number in range(1, 4000):
        path = page.with_name(f"rank-{number:05d}.page")
        path.write_bytes(body)


@attack("pages")
def thousands_of_jobs(ground: Ground) -> None:
    """3,000 folders of jobs without a page."""
    for number in range(3000):
        (ground.jobs / f"{ground.name}-{number}").mkdir()


@attack("pages")
def thousands_of_attempts(ground: Ground) -> None:
    """One job with 3,000 attempts, a page in each."""
    page = ground.page(0, rows=1)
    body = page.read_bytes()
    for number in range(1, 3000):
        folder = page.parents[1] / str(number)
        folder.mkdir()
        (folder / "rank-00000.page").write_bytes(body)


@attack("pages", seconds=3.0)
def empty_files(ground: Ground) -> None:
    """200,000 empty files with names of pages in one attempt."""
    folder = ground.job() / "0"
    for number in range(200_000):
        os.close(os.open(folder / f"rank-{number:06d}.page", os.O_CREAT | os.O_WRONLY, 0o644))


@attack("pages")
def sparse_page(ground: Ground) -> None:
    """A page that claims a terabyte of rows in a sparse file."""
    page = ground.page()
    ground.patch(page, IDENTITY, "I", row_count=2**32 - 1)
    os.truncate(page, 1 << 40)


def _place(ground: Ground, name: str = "rank-00000.page") -> Path:
    return ground.job() / "0" / name


@attack("pages", telling=True)
def page_is_a_fifo(ground: Ground) -> None:
    """A FIFO that nobody writes into as page."""
    os.mkfifo(_place(ground), 0o644)


@attack("pages")
def page_is_a_folder(ground: Ground) -> None:
    """A folder as page."""
    _place(ground).mkdir()


@attack("pages")
def page_is_a_socket(ground: Ground) -> None:
    """A socket as page."""
    server = socket.socket(socket.AF_UNIX)
    folder = os.open(_place(ground).parent, os.O_RDONLY)
    server.bind(f"/proc/self/fd/{folder}/rank-00000.page")
    ground.held.append(server)


@attack("pages")
def page_is_zero_device(ground: Ground) -> None:
    """A link to /dev/zero as page."""
    _place(ground).symlink_to("/dev/zero")


@attack("pages")
def page_is_a_neighbours(ground: Ground) -> None:
    """A link to the neighbour's page as page of another rank of the attacker's job."""
    _place(ground).symlink_to(ground.jobs / "victim" / "0" / "rank-00000.page")


@attack("pages")
def page_is_a_loop(ground: Ground) -> None:
    """A link to itself as page."""
    _place(ground).symlink_to("rank-00000.page")


@attack("pages")
def page_is_memory(ground: Ground) -> None:
    """A link to /proc/self/mem as page."""
    _place(ground).symlink_to("/proc/self/mem")


@attack("pages", telling=True)
def job_is_a_link_to_a_neighbours(ground: Ground) -> None:
    """A link to the neighbour's folder as a job of the attacker."""
    (ground.jobs / ground.name).symlink_to("victim")


@attack("pages")
def attempt_is_a_link_to_a_neighbours(ground: Ground) -> None:
    """A link to the neighbour's attempt as the second attempt of the attacker's job."""
    ground.page()
    (ground.jobs / ground.name / "1").symlink_to("../victim/0")


@attack("pages")
def job_is_the_root_folder(ground: Ground) -> None:
    """Links to / and to /proc as jobs."""
    (ground.jobs / f"{ground.name}-1").symlink_to("/")
    (ground.jobs / f"{ground.name}-2").symlink_to("/proc")


@attack("pages")
def job_with_a_hostile_name(ground: Ground) -> None:
    """Folders of jobs named by control characters, quotes, no UTF-8 and 255 bytes."""
    for name in (b"\x1b[2J\n", b'a"} 1\nup 1', b"\xff\xfe", b"x" * 255, b"-rf", "\u202ea".encode()):
        path = os.fsencode(ground.jobs) + b"/" + name
        os.makedirs(path + b"/0")
        page = Path(os.fsdecode(path)) / "0" / "rank-00000.page"
        page.write_bytes(ground.page(0, ground.job(f"{ground.name}-{len(name)}")).read_bytes())


@attack("pages")
def numbers_beyond_integers(ground: Ground) -> None:
    """Attempts and ranks of 400 digits, of other digits and below zero."""
    body = ground.page().read_bytes()
    job = ground.jobs / ground.name
    for attempt in ("9" * 200, "-1", "\u0663", "0x1", "1e3", "00"):
        (job / attempt).mkdir()
        for rank in ("9" * 200, "-0001", "\u0663" * 5, "1e999"):
            (job / attempt / f"rank-{rank}.page").write_bytes(body)


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


def _forked(ground: Ground, do: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        while True:
            do()
    ground.held.append(pid)


@attack("pages", seconds=2.0)
def page_cut_while_it_is_read(ground: Ground) -> None:
    """A page that is cut to nothing and restored without an end."""
    path = ground.job() / "0" / "rank-00000.page"
    body = ground.page(1).read_bytes()

    def cut() -> None:
        path.write_bytes(body)
        os.truncate(path, 100)

    _forked(ground, cut)


@attack("pages", seconds=2.0)
def page_of_random_bytes(ground: Ground) -> None:
    """A page whose sections change at random without an end, under valid checksums."""
    page = ground.page()
    chance = random.Random(7)

    def change() -> None:
        for section in (SLOT, PERIODIC):
            ground.fill(page, section, chance.randbytes(8))
            os.close(ground.held.pop())
        time.sleep(0.01)

    _forked(ground, change)


@attack("pages", seconds=2.0)
def job_replaced_without_end(ground: Ground) -> None:
    """A job whose folder is a folder, a link and nothing in turn, without an end."""
    page = ground.page()
    job, other = page.parents[1], ground.jobs / f"{ground.name}-2"

    def replace() -> None:
        job.rename(other)
        job.symlink_to("victim")
        job.unlink()
        other.rename(job)

    _forked(ground, replace)


@attack("pages", seconds=2.0)
def labels_that_change_each_tick(ground: Ground) -> None:
    """A page whose project, queue and class change every 50 ms."""
    page = ground.page()

    def change() -> None:
        word = os.urandom(16).hex().encode()
        ground.patch(page, IDENTITY, "s", project=word, queue=word, job_class=word)
        os.close(ground.held.pop())
        time.sleep(0.05)

    _forked(ground, change)


@attack("pages", seconds=SLOW_TIER_SECONDS)
def folder_closed_to_the_group(ground: Ground) -> None:
    """A job whose folders and page have the mode 0."""
    page = ground.page()
    for path in (page, page.parent, page.parents[1]):
        path.chmod(0)
