"""Attacks by the number, kind and names of pages and folders, and by pages that never rest."""

import os
import random
import signal
import time
from collections.abc import Callable

from lockstep_records.page.layout import IDENTITY, PERIODIC, SLOT
from tenants.table import SLOW_TIER_SECONDS, Ground, attack


@attack("pages")
def invented_clusters(ground: Ground) -> None:
    """400 jobs, each with its own cluster, project, queue and class."""
    for number in range(400):
        job = ground.job(f"{ground.name}-{number}")
        names = {"cluster": f"c{number}", "project": f"p{number}", "queue": f"q{number}"}
        ground.page(0, job, rows=1, **names, job_class=f"k{number}")


@attack("pages", seconds=3.0)
def thousands_of_ranks(ground: Ground) -> None:
    """One job with 4,000 pages of a few rows."""
    page = ground.page(0, rows=1)
    body = page.read_bytes()
    for number in range(1, 4000):
        path = page.with_name(f"rank-{number:05d}.page")
        path.write_bytes(body)


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


@attack("pages")
def job_with_a_hostile_name(ground: Ground) -> None:
    """Folders of jobs named by control characters, quotes, no UTF-8 and 255 bytes."""
    for name in (b"\x1b[2J\n", b'a"} 1\nup 1', b"\xff\xfe", b"x" * 255, b"-rf", "\u202ea".encode()):
        folder = ground.jobs / os.fsdecode(name) / "0"
        folder.mkdir(parents=True)
        page = folder / "rank-00000.page"
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

    def truncate() -> None:
        path.write_bytes(body)
        os.truncate(path, 100)

    _forked(ground, truncate)


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
