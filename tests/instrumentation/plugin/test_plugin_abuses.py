"""Whatever is done to the plugin, the job goes on, and one line says why it is off."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from servers import captured

from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.page.reader import read_page

from .ranks import compile_driver

CALLS = (
    *("plain", "init_twice", "unknown_handles", "null_fields", "unterminated_names", "null_mask"),
    *("finalize_in_storm", "fork_in_storm", "unannounced_types", "many_communicators"),
    *("folder_vanishes", "two_versions"),
)
LONG, NEXT, NOBODY = "9" * 50_000, "LOCKSTEP_NCCL_NEXT_PLUGIN", 65534
# name: environment, what the one line says, or nothing
PLACES: dict[str, tuple[dict[str, str | None], str]] = {
    "no environment": (dict.fromkeys(("RANK", "WORLD_SIZE", "LOCKSTEP_JOB_ID")), ""),
    "long rank": ({"RANK": LONG}, ""),
    "long names": ({"LOCKSTEP_NODE": LONG, "LOCKSTEP_PROJECT": LONG}, ""),
    "long job": ({"LOCKSTEP_JOB_ID": LONG}, "cannot be the name of a folder"),
    "job of a path": ({"LOCKSTEP_JOB_ID": "../x"}, "cannot be the name of a folder"),
    "long folder": ({"LOCKSTEP_DIR": f"/dev/shm/{LONG}"}, "cannot be made"),  # noqa: S108  # it is not
    "a disk": ({"LOCKSTEP_DIR": "/var/tmp/lockstep"}, "on no tmpfs"),  # noqa: S108  # not made
    "full": ({}, "has no room"),
    "small files": ({}, "has no room"),
    "read-only": ({}, "cannot be made (Permission denied)"),
    "next is absent": ({NEXT: f"/{LONG}"}, "so nothing is handed on"),
    "next is no plugin": ({NEXT: "libm.so.6"}, "has no ncclProfiler_v6"),
    "next fails": ({NEXT: "next.so", "NEXT_FAILS": "1"}, ""),
}


def abused(
    root: Path, call: str, *flags: str, environment: dict[str, str | None], words: str
) -> None:
    compiled = compile_driver(*flags)
    own = {
        "ASAN_OPTIONS": "detect_leaks=0",
        "LOCKSTEP_DIR": str(root),
        "LOCKSTEP_JOB_ID": "job",
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    if environment.get(NEXT) == "next.so":
        environment |= {NEXT: str(compiled.following)}
    done = captured(
        [compiled.abuse, compiled.plugin, call],
        env={n: v for n, v in {**os.environ, **own, **environment}.items() if v is not None},
        timeout=60,
        user=NOBODY if words.endswith("(Permission denied)") else None,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    assert done.stderr.count("\n") == bool(words), done.stderr
    assert words in done.stderr
    for job in (root / "jobs").glob("*"):
        for path in list_pages(list_attempts(job)[-1]):
            assert read_page(path).phase == "done"


@pytest.mark.parametrize("flag", ["-O2", "-fsanitize=address,undefined", "-fsanitize=thread"])
@pytest.mark.parametrize("call", CALLS)
def test_no_call_crashes_blocks_or_allocates(root: Path, call: str, flag: str) -> None:
    words = "second library" if call == "two_versions" else ""
    abused(root, call, flag, environment={}, words=words)


@contextmanager
def prepared(name: str, root: Path) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)]
    if name in {"full", "read-only"} and os.geteuid():
        pytest.skip("it needs root")
    if name == "full" and subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted")
    if name == "small files":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    if name == "read-only":
        root.chmod(0o755)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if name == "full":
            subprocess.run(["umount", root], check=True)


@pytest.mark.parametrize("name", PLACES)
def test_where_it_cannot_write_one_line_says_so(root: Path, name: str) -> None:
    environment, words = PLACES[name]
    compile_driver()
    with prepared(name, root):
        abused(root, "plain", environment=dict(environment), words=words)
