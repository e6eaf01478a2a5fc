"""Reads Slurm's accounting as text (sacct, squeue, scontrol), with the outcome of each state.

Comments may hold line ends and invalid UTF-8, and a state may name who cancelled ("CANCELLED by
1185300516"); a job that was requeued has several rows of one id.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from lockstep_catalogue.vocabulary import FailureClass, Outcome

SlurmOutcome = Literal[Outcome, "running", "pending"]
_DELIMITERS = ("|#", "|")
# A table that is torn in the middle would otherwise be gathered to its end.
_MOST_FIELD_BYTES = 1 << 20
_STARTED = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED"})
# State: outcome, failure class, reason.
STATES: dict[str, tuple[SlurmOutcome, FailureClass | None, str | None]] = {
    "COMPLETED": ("succeeded", None, None),
    "FAILED": ("failed", "unknown", "exit"),
    "OUT_OF_MEMORY": ("failed", "user", "host_oom"),
    "NODE_FAIL": ("failed", "infra", "node_failure"),
    "BOOT_FAIL": ("failed", "infra", "node_failure"),
    "LAUNCH_FAILED": ("failed", "infra", "launch"),
    "RECONFIG_FAIL": ("failed", "infra", "launch"),
    "TIMEOUT": ("time_limit", "user", "time_limit"),
    "DEADLINE": ("time_limit", "user", "deadline"),
    "CANCELLED": ("cancelled", None, "cancelled"),
    "REVOKED": ("cancelled", None, "revoked"),
    "PREEMPTED": ("preempted", None, "preemption"),
    "REQUEUED": ("preempted", None, "requeue"),
    "PENDING": ("pending", None, None),
    "CONFIGURING": ("pending", None, None),
    "REQUEUE_HOLD": ("pending", None, None),
    "REQUEUE_FED": ("pending", None, None),
    "SPECIAL_EXIT": ("failed", "user", "exit"),
    "RESV_DEL_HOLD": ("pending", None, None),
    "RESIZING": ("running", None, None),
    **dict.fromkeys(sorted(_STARTED), ("running", None, None)),
}
_ABSENT = frozenset({"", "Unknown", "None", "N/A", "(null)", "INVALID", "Partition_Limit"})
_GPUS = re.compile(r"gres/gpu(?::[\w.-]+)?=(\d+)")
_GPU_MODEL = re.compile(r"gres/gpu:([\w.-]+)=\d+")
_SPAN = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:.-]*)=")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmRun:
    """A run of a job that went back to the queue; None where the accounting says nothing."""

    state: str
    start: float | None
    end: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """A job by Slurm's accounting; None where that says nothing.

    Attributes:
        state: Slurm's name of the state, without who cancelled.
        cancelled_by: user id or name behind "CANCELLED by".
        requeues: how often it went back to the queue before this.
        exit_code: of its batch script; ``signal`` that ended it.
        start: seconds since 1970, as ``submit`` and ``end``.
        earlier: runs before a requeue, where the table has their rows.
    """

    job_id: str
    name: str | None
    state: str
    outcome: SlurmOutcome
    failure_class: FailureClass | None
    reason: str | None
    cancelled_by: str | None
    requeues: int
    submit: float | None
    start: float | None
    end: float | None
    exit_code: int | None
    signal: int | None
    nodes: int | None
    gpus: int | None
    gpu_model: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    time_limit_seconds: float | None = None
    earlier: tuple[SlurmRun, ...] = ()


def rows(
    lines: Iterable[bytes | str], header: tuple[str, ...] | None = None
) -> Iterator[dict[str, str]]:
    """Rows of a table that sacct or squeue printed with ``--parsable2`` or a delimiter of its own.

    Args:
        lines: the output; a row whose comment holds line ends is joined again.
        header: names of the columns; those on the first line when left out.

    Raises:
        ValueError: the first line is not the header of such a table.
    """
    delimiter = None
    pending = ""  # a row that its line does not end
    for raw in lines:
        line = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
        line = line.rstrip("\r\n")
        if delimiter is None:
            delimiter = next((text for text in _DELIMITERS if text in line), None)
            if delimiter is None:
                raise ValueError(
                    f"no table of Slurm begins with {line[:60]!r}; print it with --parsable2"
                )
            if header is None:
                header = tuple(name.strip() for name in line.split(delimiter))
                continue
        assert header is not None
        pending = f"{pending}\n{line}" if pending else line
        values = pending.split(delimiter)
        if len(values) < len(header) and len(pending) < _MOST_FIELD_BYTES:
            continue
        pending = ""
        if len(values) >= len(header):
            yield {name: value.strip() for name, value in zip(header, values, strict=False)}


def blocks(text: str) -> Iterator[dict[str, str]]:
    """The jobs that ``scontrol show job`` printed: NAME=VALUE words, a blank line between jobs."""
    for block in re.split(r"\n\s*\n|\n(?=JobId=)", text.strip()):
        pairs = list(_PAIR.finditer(block))
        ends = [pair.start() for pair in pairs[1:]] + [len(block)]
        values = {
            pair[1]: block[pair.end() : end].strip() for pair, end in zip(pairs, ends, strict=True)
        }
        if "JobId" in values:
            yield values


def jobs(table: Iterable[dict[str, str]], utc_offset_seconds: int = 0) -> list[SlurmJob]:
    """One record a job, from rows of sacct or squeue or blocks of scontrol.

    The last row of a job holds its outcome, and the rows before it are requeues. Rows of
    steps (``123.batch``, ``123.0``) count only where the job's own row is not among them.

    Args:
        table: rows in the order of printing.
        utc_offset_seconds: how far Slurm's clock is ahead of UTC.
    """
    by_id: dict[str, list[dict[str, str]]] = {}
    steps: dict[str, dict[str, str]] = {}
    for row in table:
        job_id = row.get("JobID") or row.get("JobId") or row.get("JOBID") or ""
        job, step, _ = job_id.partition(".")
        if job and not step:
            by_id.setdefault(job, []).append(row)
        elif job and not job_id.endswith(".extern"):
            steps.setdefault(job, row)
        elif job:
            steps.setdefault(f"{job}.extern", row)
    for name, row in steps.items():
        by_id.setdefault(name.removesuffix(".extern"), [row])
    return [
        _job(job_id, own[-1], _earlier_runs(own), utc_offset_seconds)
        for job_id, own in by_id.items()
    ]


def _earlier_runs(own: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows before a requeue; a row of a run that a later row tells of again is none."""
    by_start = {_first(row, "Start", "StartTime", "START_TIME"): row for row in own}
    return [row for row in by_start.values() if row is not own[-1]]


def state_of(text: str) -> tuple[str, str | None]:
    """Slurm's name of a state, and who cancelled; flags and the ``+`` of a short column removed."""
    word, _, by = text.strip().partition(" by ")
    state = word.strip().rstrip("+*~#!%$@^-").split(" ")[0].upper()
    # sacct cuts a word that its column has no room for.
    full = [name for name in STATES if name.startswith(state)] if state else []
    return (full[0] if state not in STATES and len(full) == 1 else state), by.strip() or None


def _job(job_id: str, row: dict[str, str], earlier: list[dict[str, str]], offset: int) -> SlurmJob:
    state, by = state_of(_first(row, "State", "JobState", "STATE") or "")
    outcome, failure_class, reason = STATES.get(state, ("unknown", "unknown", None))
    code, signal = _exit(_first(row, "ExitCode", "EXIT_CODE"))
    restarts = _count(_first(row, "Restarts"))
    tres = _first(row, "AllocTRES", "TRES", "ReqTRES") or ""
    gpus = _GPUS.search(tres)
    return SlurmJob(
        job_id=job_id,
        name=_first(row, "JobName", "NAME"),
        state=state,
        outcome=outcome,
        failure_class=failure_class,
        reason=reason,
        cancelled_by=by,
        requeues=max(len(earlier), restarts or 0),
        submit=_time(_first(row, "Submit", "SubmitTime", "SUBMIT_TIME"), offset),
        start=_time(_first(row, "Start", "StartTime", "START_TIME"), offset),
        end=None
        if outcome in {"running", "pending"}
        else _time(_first(row, "End", "EndTime", "END_TIME"), offset),
        exit_code=code,
        signal=signal,
        nodes=_count(_first(row, "NNodes", "AllocNodes", "NumNodes", "NODES")),
        gpus=int(gpus[1]) if gpus else None,
        gpu_model=model[1] if (model := _GPU_MODEL.search(tres)) else None,
        user=_first(row, "User", "UserId", "USER"),
        account=_first(row, "Account", "ACCOUNT"),
        partition=_first(row, "Partition", "PARTITION"),
        time_limit_seconds=_span_seconds(_first(row, "Timelimit", "TimeLimit", "TIME_LIMIT")),
        earlier=tuple(_run(each, offset) for each in earlier),
    )


def _run(row: dict[str, str], offset: int) -> SlurmRun:
    return SlurmRun(
        state=state_of(_first(row, "State", "JobState", "STATE") or "")[0],
        start=_time(_first(row, "Start", "StartTime", "START_TIME"), offset),
        end=_time(_first(row, "End", "EndTime", "END_TIME"), offset),
    )


def _span_seconds(text: str | None) -> float | None:
    """Seconds of [D-][HH:]MM:SS; None for UNLIMITED and the like."""
    match = _SPAN.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _first(row: dict[str, str], *names: str) -> str | None:
    values = (row[name] for name in names if row.get(name, "") not in _ABSENT)
    return next(values, None)


def _exit(text: str | None) -> tuple[int | None, int | None]:
    match = re.fullmatch(r"(\d+):(\d+)", text or "")
    if match is None:
        return None, None
    return int(match[1]), int(match[2]) or None


def _count(text: str | None) -> int | None:
    match = re.match(r"\d+", text or "")
    return int(match[0]) if match else None


def _time(text: str | None, offset: int) -> float | None:
    try:
        return datetime.fromisoformat(text or "").replace(tzinfo=UTC).timestamp() - offset
    except ValueError:
        return None
