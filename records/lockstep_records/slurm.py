"""Slurm's accounting as text: sacct, squeue and scontrol, and the outcome that each state is.

Comments may run over lines and hold invalid UTF-8, and states carry who cancelled ("CANCELLED by
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
_UNTOLD = frozenset({"", "Unknown", "None", "N/A", "(null)", "INVALID", "Partition_Limit"})
_GPUS = re.compile(r"gres/gpu(?::\w+)?=(\d+)")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:.-]*)=")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob:
    """A job as Slurm tells it; None where it does not.

    Attributes:
        state: Slurm's word, without who cancelled.
        cancelled_by: user id or name behind "CANCELLED by".
        requeues: how often it went back to the queue before this.
        exit_code: of its batch script; ``signal`` that ended it.
        start: seconds since 1970; Slurm's local times are taken for the offset told.
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
    node_list: str | None


def rows(
    lines: Iterable[bytes | str], header: tuple[str, ...] | None = None
) -> Iterator[dict[str, str]]:
    """Rows of a table that sacct or squeue printed with ``--parsable2`` or a delimiter of its own.

    Args:
        lines: the output; a row whose comment holds line ends is put together again.
        header: names of the columns; the first line tells them when left out.

    Raises:
        ValueError: the first line is no header of such a table.
    """
    delimiter = None
    gathered = ""
    for raw in lines:
        line = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
        line = line.rstrip("\r\n")
        if delimiter is None:
            delimiter = next((mark for mark in _DELIMITERS if mark in line), None)
            if delimiter is None:
                raise ValueError(
                    f"no table of Slurm begins with {line[:60]!r}; print it with --parsable2"
                )
            if header is None:
                header = tuple(name.strip() for name in line.split(delimiter))
                continue
        assert header is not None
        gathered = f"{gathered}\n{line}" if gathered else line
        told = gathered.split(delimiter)
        if len(told) < len(header) and len(gathered) < _MOST_FIELD_BYTES:
            continue
        gathered = ""
        if len(told) >= len(header):
            yield {name: value.strip() for name, value in zip(header, told, strict=False)}


def blocks(text: str) -> Iterator[dict[str, str]]:
    """The jobs that ``scontrol show job`` printed: NAME=VALUE words, a blank line between jobs."""
    for block in re.split(r"\n\s*\n|\n(?=JobId=)", text.strip()):
        found = list(_PAIR.finditer(block))
        ends = [match.start() for match in found[1:]] + [len(block)]
        told = {
            match[1]: block[match.end() : end].strip()
            for match, end in zip(found, ends, strict=True)
        }
        if "JobId" in told:
            yield told


def jobs(table: Iterable[dict[str, str]], utc_offset_seconds: int = 0) -> list[SlurmJob]:
    """One record a job, from rows of sacct or squeue or blocks of scontrol.

    Of a job with several rows the last one tells its outcome, and the others are requeues. Rows of
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
        _job(job_id, told[-1], len(told) - 1, utc_offset_seconds) for job_id, told in by_id.items()
    ]


def state_of(text: str) -> tuple[str, str | None]:
    """Slurm's word for a state and who cancelled; ``+`` for cut words and flags are left out."""
    word, _, by = text.strip().partition(" by ")
    state = word.strip().rstrip("+*~#!%$@^-").split(" ")[0].upper()
    full = [known for known in STATES if known.startswith(state)] if state else []
    return (full[0] if state not in STATES and len(full) == 1 else state), by.strip() or None


def _job(job_id: str, row: dict[str, str], requeues: int, offset: int) -> SlurmJob:
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
        requeues=max(requeues, restarts or 0),
        submit=_time(_first(row, "Submit", "SubmitTime", "SUBMIT_TIME"), offset),
        start=_time(_first(row, "Start", "StartTime", "START_TIME"), offset),
        end=None
        if outcome in {"running", "pending"}
        else _time(_first(row, "End", "EndTime", "END_TIME"), offset),
        exit_code=code,
        signal=signal,
        nodes=_count(_first(row, "NNodes", "AllocNodes", "NumNodes", "NODES")),
        gpus=int(gpus[1]) if gpus else None,
        node_list=_first(row, "NodeList", "NODELIST"),
    )


def _first(row: dict[str, str], *names: str) -> str | None:
    told = (row[name] for name in names if row.get(name, "") not in _UNTOLD)
    return next(told, None)


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
