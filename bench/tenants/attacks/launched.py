"""Attacks on the launcher: folders claimed before a job starts, and its ranks' stderr."""

import contextlib
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tenants.table import Attack, Ground, attack, register

if TYPE_CHECKING:
    from tenants.arena import Arena

SECRET = "the-words-of-the-launched-rank"  # noqa: S105  # what an attacker is after
_WORDS = f"import sys; sys.stderr.write('{SECRET}\\n')"
_MOST_SECONDS = 15.0


def _is_unread(arena: "Arena", _: str) -> str:
    """The claimed job trains, and the attacker finds none of its output."""
    job_id = f"next-{arena.attack}"
    done, seconds = arena.launch(job_id, _WORDS)
    if seconds > _MOST_SECONDS:
        return f"the launcher took {seconds:.0f} s"
    if done.returncode:
        return f"the job did not train: status {done.returncode}"
    found = arena.found_by_attacker(SECRET)
    return f"the attacker reads the rank's stderr in {found}" if found else ""


@attack("launcher", seconds=0.0, judge=_is_unread)
def folder_claimed(ground: Ground) -> None:
    """The attacker owns the job's folder, open to all, before the job starts."""
    path = ground.jobs / f"next-{ground.name}"
    path.mkdir()
    path.chmod(0o777)


@attack("launcher", seconds=0.0, judge=_is_unread)
def attempt_claimed(ground: Ground) -> None:
    """The attacker owns the folders of job and attempt, open to all, with a FIFO as stderr."""
    path = ground.jobs / f"next-{ground.name}" / "0"
    path.mkdir(parents=True)
    for each in (path.parent, path):
        each.chmod(0o777)
    os.mkfifo(path / "rank-00000.stderr", 0o666)
    (path / "rank-00000.stderr").chmod(0o666)


@attack("launcher", seconds=0.0, judge=_is_unread)
def attempt_claimed_with_files(ground: Ground) -> None:
    """The attacker owns the folders of job and attempt, and files open to all with all names."""
    path = ground.jobs / f"next-{ground.name}" / "0"
    path.mkdir(parents=True)
    for name in ("rank-00000.stderr", "rank-00000.error.json", "rank-00000.page"):
        (path / name).touch()
    for each in (path.parent, path, *path.iterdir()):
        each.chmod(0o777)


@attack("launcher", seconds=0.0, judge=_is_unread)
def folder_claimed_with_an_acl(ground: Ground) -> None:
    """The attacker owns the job's folder, whose default ACL lets it read whatever is created."""
    path = ground.jobs / f"next-{ground.name}"
    path.mkdir()
    path.chmod(0o777)
    nobody = 0xFFFFFFFF
    entries = (
        (1, 7, nobody),
        (2, 7, os.getuid()),
        (4, 7, nobody),
        (16, 7, nobody),
        (32, 7, nobody),
    )
    packed = b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_default", struct.pack("<I", 2) + packed)


@attack("launcher", seconds=0.0, judge=_is_unread)
def folder_claimed_with_fifos(ground: Ground) -> None:
    """The attacker owns the job's folder, with FIFOs as events and switches."""
    path = ground.jobs / f"next-{ground.name}"
    path.mkdir()
    path.chmod(0o777)
    for name in ("events.jsonl", "switches.json"):
        os.mkfifo(path / name)
        (path / name).chmod(0o666)


@attack("launcher", seconds=0.0, judge=_is_unread)
def folder_claimed_by_a_link(ground: Ground) -> None:
    """The job's folder is a link to one of the attacker's, open to all."""
    target = ground.jobs / ground.name
    target.mkdir()
    target.chmod(0o777)
    (ground.jobs / f"next-{ground.name}").symlink_to(target)


def _home_is_unchanged(arena: "Arena", obtained: str) -> str:
    home = arena.base / "victim"
    before = set(home.iterdir())
    complaint = _is_unread(arena, obtained)
    new = sorted(path.name for path in set(home.iterdir()) - before)
    return complaint or (f"the launcher wrote {new} into its user's home" if new else "")


@attack("launcher", seconds=0.0, judge=_home_is_unchanged)
def folder_is_a_link_home(ground: Ground) -> None:
    """The job's folder is a link to the home of the job's own user."""
    (ground.jobs / f"next-{ground.name}").symlink_to(ground.home.parent / "victim")


_STDERR: dict[str, tuple[str, str]] = {
    "hexadecimal": ("8,000 hexadecimal characters in one line", "'0123456789abcdef' * 500"),
    "letters": ("64 KiB of one letter", "'a' * 65536"),
    "schemes": ("16,000 times ://", "'://' * 16000"),
    "begins": ("4,000 beginnings of private keys", "'-----BEGIN PRIVATE KEY' * 4000"),
    "names": ("8,000 names of secrets without a value", "'password' * 8000"),
    "assignments": ("8,000 assignments without an end", "'token=' * 8000"),
    "tokens": ("16,000 beginnings of JSON web tokens", "'eyJ.' * 16000"),
    "at_signs": ("a user and 60,000 at signs", "'x://a:' + '@' * 60000"),
    "spaces": ("a name and 60,000 spaces", "'password' + ' ' * 60000"),
    "megabytes": ("64 MiB without a line end", "'Authorization: ' * (4 << 20)"),
}


def _is_quick(text: str) -> "Judge":  # type: ignore[name-defined]  # noqa: F821
    program = f"import sys; sys.stderr.write({text} + '\\n')"

    def judge(arena: "Arena", _: str) -> str:
        done, seconds = arena.launch(f"stderr-{arena.attack}", program)
        if done.returncode:
            return f"the launcher ended with status {done.returncode}"
        late = seconds > _MOST_SECONDS
        return f"the launcher took {seconds:.0f} s" if late else ""

    return judge


def _nothing(_: Ground) -> None:
    """A rank's own user writes the text; nobody else takes part."""


for _name, (_what, _text) in _STDERR.items():
    register(
        Attack(
            f"stderr_of_{_name}",
            "launcher",
            f"a rank writes {_what} to stderr",
            _nothing,
            0.0,
            _is_quick(_text),
        )
    )

_HIDDEN = "s3cr3tv4lu3"
_SECRETS = (
    "Authorization: Bearer {}",
    "Authorization: Basic {}",
    "Authorization: Digest response={}",
    "Proxy-Authorization: Negotiate {}",
    "Cookie: session={}",
    "Set-Cookie: id={}; Path=/",
    "DB_PASS={}",
    "pwd={}",
    "passphrase: {}",
    "MYSQL_PWD={}",
    '{{"api_key": "{}"}}',
    "['--token', '{}']",
    "{{'password': '{}'}}",
    "postgresql://user:p@{}@host/db",
    "https://user:{}@host/",
    "AWS_SECRET_ACCESS_KEY={}",
    "ghp_{}abcdefghijklmnopqrstuvwxyz0123",
    "hf_{}abcdefghijklmnopqrstuvwx",
    "glpat-{}abcdefghi",
    "xoxb-1234567890-{}abcdef",
)


def _are_masked(arena: "Arena", _: str) -> str:
    lines = [f"{number}: {text.format(_HIDDEN)}" for number, text in enumerate(_SECRETS)]
    program = f"import sys; sys.stderr.write({chr(10).join(lines)!r} + chr(10))"
    job_id = f"stderr-{arena.attack}"
    done, _seconds = arena.launch(job_id, program)
    stored = b""
    for path in (arena.root / "jobs" / job_id).rglob("*.stderr"):
        stored += path.read_bytes()
    seen = [text for number, text in enumerate(_SECRETS) if _shows(stored, number)]
    if not stored:
        return f"no stderr was kept; status {done.returncode}"
    return f"kept with the secret: {seen}" if seen else ""


def _shows(stored: bytes, number: int) -> bool:
    lines = stored.replace(b"\0", b"\n").split(b"\n")
    begin = f"{number}: ".encode()
    return any(_HIDDEN.encode() in line for line in lines if begin in line)


register(
    Attack(
        "secrets_of_common_forms",
        "launcher",
        f"a rank writes {len(_SECRETS)} secrets of common forms to stderr",
        _nothing,
        0.0,
        _are_masked,
    )
)


def readable_with(folder: Path, word: str) -> str:
    """First file below a folder that this process can read and that holds the word."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                descriptor = os.open(Path(parent) / name, os.O_RDONLY | os.O_NONBLOCK)
                with open(descriptor, "rb") as file:  # noqa: PTH123  # by its descriptor
                    if word.encode() in file.read(1 << 20):
                        return str(Path(parent, name).relative_to(folder))
    return ""
