"""What a job's log tells: findings, progress, step times and the clock, from files of any size."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SUFFIXES = (".log", ".txt", ".out", ".err", ".gz", ".zst", ".stdout", ".stderr")
MOST_FILES = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a log as evidence; ``number`` counts from 1, ``text`` is shortened."""

    file: str
    number: int
    text: str
    kind: str
    rank: int | None
    time: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """All lines of one kind that say the same.

    Attributes:
        kind: name in ``joblog_kinds.KINDS``.
        key: what they have in common beyond the kind: the exception, the collective, the Xid.
        ranks: who printed it, ascending, as far as known; an exit belongs to whom it tells of.
        nodes: nodes that it names.
        voices: how many printed it, by their labels; 0 when no line has one.
        order: place of the first one among all lines; ``last_order`` of the last one.
        codes: exit codes that it tells.
    """

    kind: str
    key: str
    count: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    voices: int
    order: int
    last_order: int
    first: Line
    codes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobLog:
    """A whole log. Times are seconds since 1970, None where nothing told them.

    Attributes:
        files: names of the files, in the order of reading.
        ranks_seen: ranks that any looked-at line belongs to.
        world_size: as told, or as many as were seen; None when nothing tells.
        first_sign: first time in it, of any rank where ranks tell theirs.
        training_start: start of training: told by a mark, else the first progress.
        last_progress: of the last step, evaluation or told end of training.
        restart_order: place of the last line that tells a restart of the ranks; -1 without one.
        run_stop: told end of training.
        run_status: what the end was told to be, such as success or aborted.
        last_sign: last time in it.
        step_seconds: duration of the steps in the order of the log.
        step_numbers: as the job counts, beside ``step_seconds``; -1 where not told.
        block_means: how many of these are means over a block of steps.
        last_step: the highest step told.
        enqueued: collectives that each rank had entered when its watchdog spoke.
        notes: sentences about what could not be read.
    """

    files: tuple[str, ...]
    lines: int
    size_bytes: int
    findings: tuple[Finding, ...]
    ranks_seen: tuple[int, ...]
    world_size: int | None
    first_sign: float | None
    training_start: float | None
    last_progress: float | None
    progress_order: int
    restart_order: int
    run_stop: float | None
    run_status: str | None
    run_stop_order: int
    last_sign: float | None
    step_seconds: "array[float]"
    step_numbers: "array[int]"
    block_means: int
    last_step: int | None
    enqueued: dict[int, int]
    timeouts: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of_kind(self, *names: str) -> tuple[Finding, ...]:
        """Findings of some kinds in the order of the log."""
        return tuple(finding for finding in self.findings if finding.kind in names)


def log_files(path: Path) -> list[Path]:
    """The log itself, or the logs of a folder and those below it, by name.

    Raises:
        OSError: the folder cannot be read.
        ValueError: there are more than 20,000 files.
    """
    if path.is_file():
        return [path]
    found = [file for file in _walk(path) if file.suffix in SUFFIXES or not file.suffix]
    if len(found) > MOST_FILES:
        raise ValueError(
            f"{path} holds {len(found)} files; logs of one job are at most {MOST_FILES}"
        )
    return sorted(found)


def _walk(folder: Path, depth: int = 4) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_symlink() or entry.name.startswith("."):
            continue
        if entry.is_dir() and depth > 0:
            yield from _walk(entry, depth - 1)
        elif entry.is_file() and entry.name not in {"SOURCE.txt", "LICENSE", "README.md"}:
            yield entry
