"""The content of a job's log: findings, progress, step times and the clock."""

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
        key: what they have in common beyond the kind: the exception, the collective, the Xid.
        ranks: ranks that printed it, ascending, as far as known; an exit belongs to the rank that
            ended.
        num_origins: processes that printed it, by their prefixes; 0 when no line has one.
        order: position of the first one among all lines; ``last_order`` of the last one.
    """

    kind: str
    key: str
    count: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    num_origins: int
    order: int
    last_order: int
    first: Line
    codes: tuple[int, ...] = ()
    is_mild: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class JobLog:
    """A whole log. Times are seconds since 1970, None where no line tells them.

    Attributes:
        world_size: as logged, or one more than the highest rank; None when no line names either.
        first_sign: first time in it; of the ranks' initialisation where that is logged.
        training_start: start of training by MLPerf's log, else the first progress.
        last_progress: time of the last step, evaluation, checkpoint or logged end of training.
        last_work: kind of that: step, block, epoch, evaluation, checkpoint, start or stop.
        restart_order: position of the last line about a restart of the ranks; -1 without one.
        run_status: how training ended as logged, such as success or aborted; None where it said
            nothing, or went on afterwards.
        withdrawn_by: kind of work that came after words of success.
        planned_minutes: after which it ended itself, as it was configured to.
        step_seconds: duration of the steps in the order of the log.
        step_numbers: number of each of these steps, as the job counts; -1 where not logged.
        step_blocks: of how many steps each duration is the mean.
        watched: times of the first and the last line after ``last_progress`` in which a scheduler
            calls the job running.
        enqueued: collectives that each rank had entered when its watchdog printed them.
        timeouts: number, kind and size of the collective that each rank timed out in.
        num_known_lines: lines of any kind that says something about a job.
        num_severe: lines that call themselves an error, of which ``num_unknown`` were not
            understood; ``first_unknown`` is the first of these.
    """

    files: tuple[str, ...]
    lines: int
    findings: tuple[Finding, ...]
    world_size: int | None
    first_sign: float | None
    training_start: float | None
    last_progress: float | None
    last_work: str | None
    progress_order: int
    restart_order: int
    run_stop: float | None
    run_status: str | None
    run_stop_order: int
    withdrawn_by: str | None
    planned_minutes: float | None
    watched: tuple[float, float] | None
    last_sign: float | None
    step_seconds: "array[float]"
    step_numbers: "array[int]"
    step_blocks: "array[int]"
    last_step: int | None
    enqueued: dict[int, int]
    timeouts: dict[int, tuple[int, str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    num_known_lines: int = 0
    num_severe: int = 0
    num_unknown: int = 0
    first_unknown: str = ""

    @property
    def block_means(self) -> int:
        """How many of the durations are means over several steps."""
        return sum(size > 1 for size in self.step_blocks)

    def select_kinds(self, *names: str) -> tuple[Finding, ...]:
        """Findings of some kinds in the order of the log."""
        return tuple(finding for finding in self.findings if finding.kind in names)


def log_files(path: Path) -> list[Path]:
    """The log, or the logs of a folder and those below; OSError, or ValueError beyond 20,000."""
    if path.is_file():
        return [path]
    files = [file for file in _walk(path) if file.suffix in SUFFIXES or not file.suffix]
    if len(files) > MOST_FILES:
        raise ValueError(
            f"{path} holds {len(files)} files; logs of one job are at most {MOST_FILES}"
        )
    return sorted(files)


def _walk(folder: Path, depth: int = 4) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.is_symlink() or entry.name.startswith("."):
            continue
        if entry.is_dir() and depth > 0:
            yield from _walk(entry, depth - 1)
        elif entry.is_file() and entry.name not in {"SOURCE.txt", "LICENSE", "README.md"}:
            yield entry
