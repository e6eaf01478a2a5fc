"""Jobs by Slurm's accounting, as sacct prints it.

A state may name who cancelled ("CANCELLED by 1185300516"); a job that was requeued has several rows
of one id. Texts may hold line ends, delimiters and invalid UTF-8, and Slurm escapes nothing: the
name of a job may hold columns and forged rows. Only a delimiter that nobody can guess makes sure
that none does.
"""

import math
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, tzinfo
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple

from lockstep_outcomes.rules import SCHEDULER_SIGNS

_DELIMITERS = ("|#", "|")
# A table of the columns that the ledger asks for shows any delimiter of its own in its header.
_OWN_DELIMITER = re.compile(r"JobID(\W.*?)User\1")
_JOB_ID = re.compile(r"\d+(?:_(?:\d+|\[[\d,:%.-]+\]))?(?:\+\d+)?(?:\.\w+)?")
_TASKS = re.compile(r"(?:^|\s)(?:-n ?|--ntasks[= ])(\d{1,7})\b")
_ASKED_PER = {"gpus-per-node": "NNodes", "gpus-per-task": "NTasks"}
_ARRAY = re.compile(r"(?P<array>\d+)_\[(?P<tasks>\d[\d,:-]*?),?(?:\.\.\.)?(?:%\d+)?\]")
_MOST_TASKS = 1000
# A table that is torn in the middle would otherwise be gathered to its end.
_MOST_FIELD_BYTES = 1 << 20
_FREE_TEXTS = frozenset({"JobName", "Comment", "SubmitLine", "WorkDir", "Extra"})
_REMEDY = "print the table with --parsable and a --delimiter that no name holds"


def rows(
    lines: Iterable[bytes | str],
    delimiter: str | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, str]]:
    """Rows of a table that sacct printed: as many columns as the header, and a job's id.

    Args:
        lines: the output; a row whose text holds line ends is joined again.
        delimiter: between columns; found on the first line when left out.
        warn: gets a sentence for each row that is left out, and on names that can forge rows.

    Raises:
        ValueError: the first line is not the header of such a table.
    """
    pending, num_values = "", 0
    header: tuple[str, ...] = ()
    for number, line in enumerate(map(_read_line, lines), 1):
        if number == 1:
            delimiter = delimiter or _find_delimiter(line)
            # --parsable ends each row by a delimiter: the end of its last text.
            num_values = len(line.split(delimiter))
            header = _read_header(line, delimiter, warn)
            continue
        assert delimiter
        pending += f"\n{line}" if pending else line
        values = pending.split(delimiter)
        if len(values) < num_values and len(pending) < _MOST_FIELD_BYTES:
            continue
        pending = ""
        row: dict[str, str] = dict(zip(header, map(str.strip, values), strict=False))
        if len(values) != num_values:
            warn(f"row on line {number} has {len(values)} columns of {num_values}; {_REMEDY}")
        elif _JOB_ID.fullmatch(row["JobID"]):
            yield row
        else:
            warn(f"row on line {number} begins with no job id, {row['JobID']!r:.80}; {_REMEDY}")
    if pending:
        warn(f"the last row has fewer than {num_values} columns; {_REMEDY}")


def _read_line(raw: bytes | str) -> str:
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return text.rstrip("\r\n")


def _read_header(line: str, delimiter: str, warn: Callable[[str], None]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in line.removesuffix(delimiter).split(delimiter))
    if "JobID" not in names:
        raise ValueError(f"a table of sacct without JobID begins with {line[:60]!r}; print it too")
    if delimiter in _DELIMITERS and _FREE_TEXTS & {*names}:
        warn(f"names of jobs can hold {delimiter!r} and forge rows; {_REMEDY}")
    return names


def _find_delimiter(line: str) -> str:
    match = _OWN_DELIMITER.match(line)
    if found := [match[1]] if match else [text for text in _DELIMITERS if text in line]:
        return found[0]
    raise ValueError(f"no table of Slurm begins with {line[:60]!r}; print it with --parsable")


OPEN_STATES = frozenset({
    "RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "STOPPED", "RESIZING",
    "PENDING", "CONFIGURING", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD",
})  # fmt: skip
ENDED_STATES = frozenset(filter(str.isupper, SCHEDULER_SIGNS))
_NO_NODE, _NO_ACCOUNTING = "None assigned", "accounting storage is disabled"
_ABSENT = frozenset({"", "Unknown", "None", "N/A", "(null)", "INVALID", "Partition_Limit"})
_GPUS = re.compile(r"gres/gpu(?::([\w.-]+))?=(\d+)")
_SHARES = re.compile(r"gres/(shard|mps)(?::[\w.-]+)?=(\d+)")
# What was asked for on the command line: the number, and of what it is a number.
_ASKED = re.compile(
    r"(?:^|\s)(?:--(?P<per>gpus(?:-per-(?:node|task))?)[= ]|-G ?|--(?P<gres>gres)[= ]\S*?\bgpu:)"
    r"(?:(?P<model>[\w.-]+)[:=])?(?P<number>\d{1,7})\b"
)
_CORES = re.compile(r"\bcpu=(\d+)")
_NODE_GPUS = re.compile(r"\b(gpu|shard|mps):(?:[^:,()]+:)?(\d{1,6})(?![\w.:])")
# A requeue's submission is the end of the run before; slurmctld may lose its state and count anew.
_MOST_REQUEUE_SECONDS = 600.0
COLUMNS = (
    "JobID", "User", "UID", "Account", "Partition", "State", "ExitCode", "Submit", "Eligible",
    "Start", "End", "Timelimit", "NNodes", "AllocTRES", "ReqTRES", "NodeList", "QOS", "Cluster",
    "DerivedExitCode", "JobName",
)  # fmt: skip
"""What ``sacct`` is asked for; a table with other columns is read too."""
_SACCT = ("sacct", "--allusers", "--duplicates", "--allocations", "--parsable")
_TASK_ID = re.compile(r"[0-9]{1,12}(?:_[0-9]{1,9}|\+[0-9]{1,3})?")
_REPORT_TIMEOUT_SECONDS, _SLACK_SECONDS = 5.0, 10.0
_SPAN = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")


class NoAccountingError(ValueError):
    """Slurm's accounting cannot be asked; the text says what is missing."""


class Partition(NamedTuple):
    """What each node of a partition has, into what its GPUs are shared, and who gets whole ones."""

    gpus: int
    cores: int | None
    is_exclusive: bool
    shares: tuple[tuple[str, int], ...] = ()

    def gpus_of(self, nodes: int, cores: int) -> int | None:
        """GPUs of a job on so many nodes with so many cores; None where it may share a node."""
        is_whole = self.is_exclusive or (self.cores or 0) * nodes == cores > 0
        return self.gpus and (self.gpus * nodes if is_whole and nodes else None)


def read_partitions(lines: Iterable[str]) -> dict[str, Partition]:
    """Partitions of a table of ``sinfo`` with PARTITION and GRES in its header, parted by ``|``."""
    header, *table = [[field.strip() for field in line.split("|")] for line in lines] or [[]]
    found: dict[str, set[Partition]] = {}
    for row in (dict(zip(header, values, strict=False)) for values in table):
        if not row.keys() >= {"GRES", "PARTITION"}:
            continue
        kinds = [(kind, int(number)) for kind, number in _NODE_GPUS.findall(row["GRES"])]
        gpus = sum(number for kind, number in kinds if kind == "gpu")
        shares, is_whole = tuple(kinds), row.get("OVERSUBSCRIBE") == "EXCLUSIVE"
        of_node = Partition(gpus, _count(row.get("CPUS")), is_whole, shares)
        found.setdefault(row["PARTITION"].rstrip("*"), set()).add(of_node)
    return {name: min(kinds) for name, kinds in found.items() if len(kinds) == 1}


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmRun:
    """A row of a job: a run, or what it was until its size changed; None where nothing is said.

    Attributes:
        eligible: from when on Slurm could have started it.
        gpus_source: column that tells the number of GPUs; empty where none does.
        models: number of GPUs by model, where several are mixed.
        gpus_stated: more than its nodes have; None where that is not so.
    """

    state: str
    submit: float | None
    eligible: float | None
    start: float | None
    end: float | None
    nodes: int | None
    gpus: float | None
    gpu_model: str | None
    gpus_source: str
    models: tuple[tuple[str, int], ...] = ()
    hosts: str = ""  # as Slurm lists them
    gpus_stated: float | None = None

    def goes_on_in(self, later: "SlurmRun") -> bool:
        """Whether a later row is of the same run: a resize, which may not be closed yet."""
        is_closed = self.end is not None and self.state not in OPEN_STATES
        is_inside = later.start is not None and later.start < (self.end or 0.0)
        return self.start is not None and (is_inside or not is_closed)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmJob(SlurmRun):
    """A job by Slurm's accounting, with its newest run; None where that says nothing.

    Attributes:
        state: Slurm's name of the state, without who cancelled.
        cancelled_by: user id or name behind "CANCELLED by".
        exit_code: of its batch script; ``signal`` that ended it.
        start: seconds since 1970, as ``submit`` and ``end``; None where it never had a node.
        end: None while it waits or runs.
        step_exit_code, step_signal: of the step which ended worst.
        earlier: rows before the newest one, of runs before a requeue and of other sizes.
    """

    job_id: str
    name: str | None
    cancelled_by: str | None
    exit_code: int | None
    signal: int | None
    user: str | None = None
    uid: int | None = None
    account: str | None = None
    partition: str | None = None
    time_limit_seconds: float | None = None
    qos: str | None = None
    cluster: str | None = None
    step_exit_code: int | None = None
    step_signal: int | None = None
    earlier: tuple[SlurmRun, ...] = ()

    @property
    def runs(self) -> list[list[SlurmRun]]:
        """Rows of each run in order; those of one run are its sizes."""
        found: list[list[SlurmRun]] = []
        for row in (*self.earlier, self):
            if found and found[-1][-1].goes_on_in(row):
                found[-1].append(row)
            else:
                found.append([row])
        return found


def ask_sacct(
    selection: Iterable[str],
    warn: Callable[[str], None] = lambda _: None,
    timeout_seconds: float = 300.0,
    partitions: Mapping[str, Partition] = MappingProxyType({}),
) -> list[SlurmJob]:
    """Jobs by the accounting of this machine's Slurm, without their steps, for these take minutes.

    Nobody can guess the delimiter, so no name of a job holds it; ``--json`` would be as safe, but
    its fields change with each version of Slurm. TZ keeps the hour apart that a zone has twice.

    Args:
        selection: options of sacct that choose the jobs.
        warn: gets a sentence for each row that is left out.
        timeout_seconds: how long sacct may take.
        partitions: as ``jobs`` takes them.

    Raises:
        NoAccountingError: sacct is not installed, or Slurm stores no accounting.
        subprocess.SubprocessError: it failed, or did not end in time.
    """
    delimiter = f"~{secrets.token_hex(8)}~"
    command = [*_SACCT, "--delimiter", delimiter, "--format", ",".join(COLUMNS), *selection]
    environment = {**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
    try:
        printed = subprocess.run(
            command, check=False, capture_output=True, timeout=timeout_seconds, env=environment
        )
    except OSError as error:
        raise NoAccountingError(f"sacct cannot be run ({error}); run where Slurm is") from error
    lines = printed.stdout.splitlines()
    error_text = printed.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if _NO_ACCOUNTING in error_text:
        raise NoAccountingError(
            "Slurm stores no accounting here (AccountingStorageType=accounting_storage/none), so "
            "nobody knows its jobs; run slurmdbd and set accounting_storage/slurmdbd"
        )
    if printed.returncode or not lines:
        raise subprocess.SubprocessError(f"status {printed.returncode}, {error_text or 'no table'}")
    return jobs(rows(lines, delimiter=delimiter, warn=warn), UTC, partitions)


def ended_state(job_id: str, last_sign_seconds: float) -> str:
    """State of the run in which a job gave its last sign; empty where Slurm does not say.

    An id that is not as Slurm writes it is of none of its jobs.
    """
    if not _TASK_ID.fullmatch(job_id):
        return ""
    try:
        found = ask_sacct(("--jobs", job_id), timeout_seconds=_REPORT_TIMEOUT_SECONDS)
    except (ValueError, subprocess.SubprocessError):
        return ""
    for run in reversed([run for job in found for run in (*job.earlier, job)]):
        begin, end = run.start or math.inf, run.end or 0.0
        if begin - _SLACK_SECONDS <= last_sign_seconds <= end + _SLACK_SECONDS:
            return run.state if run.state in ENDED_STATES else ""
    return ""


def jobs(
    table: Iterable[dict[str, str]],
    zone: tzinfo = UTC,
    partitions: Mapping[str, Partition] = MappingProxyType({}),
) -> list[SlurmJob]:
    """One record a job, from rows of sacct.

    The last row of a job holds its outcome, and the rows before it are requeues. Rows of
    steps (``123.batch``, ``123.0``) count only where the job's own row is not among them.

    Args:
        table: rows in the order of printing.
        zone: of times without one; the hour that a zone has twice counts as the first.
        partitions: by name; they tell the GPUs of jobs that have whole nodes.
    """
    by_id: dict[str, list[dict[str, str]]] = {}
    steps: dict[str, dict[str, str]] = {}
    for row in table:
        job, step, _ = row["JobID"].partition(".")
        if job and not step:
            by_id.setdefault(job, []).append(row)
        elif job:
            steps.setdefault(f"{job}.extern" if step == "extern" else job, row)
    for name, row in steps.items():
        by_id.setdefault(name.removesuffix(".extern"), [row])
    return [_job(i, own[-1], _earlier_runs(own), zone, partitions) for i, own in by_id.items()]


def _earlier_runs(own: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows before a requeue; a row of a run that a later row tells of again is none."""
    starts = [_first(row, "Start") for row in own]
    for number, row in enumerate(own[1:]):
        # Slurm gives every size of a run the start of its first: each begins with its submission.
        if own[number].get("State") == "RESIZING" and starts[number] == starts[number + 1]:
            row["Start"] = row.get("Submit", "")
    by_start = {_first(row, "Start"): row for row in own}
    earlier = [row for row in by_start.values() if row is not own[-1]]
    times = [_run(row, UTC, {}) for row in (*earlier, own[-1])]
    for number in reversed(range(len(earlier))):
        submit, end = times[number + 1].submit, times[number].end
        if submit is not None and end is not None and submit - end > _MOST_REQUEUE_SECONDS:
            return earlier[number + 1 :]  # of another job of the same id
    return earlier


def state_of(text: str) -> tuple[str, str | None]:
    """Slurm's name of a state, and who cancelled; flags and the ``+`` of a short column removed."""
    word, _, by = text.strip().partition(" by ")
    state = word.strip().rstrip("+*~#!%$@^-").split(" ")[0].upper()
    # sacct cuts a word that its column has no room for.
    full = [name for name in OPEN_STATES | ENDED_STATES if name.startswith(state)]
    return full[0] if len(full) == 1 else state, by.strip() or None


def _job(  # rows, and what to read them by
    job_id: str,
    row: dict[str, str],
    earlier: list[dict[str, str]],
    zone: tzinfo,
    partitions: Mapping[str, Partition],
) -> SlurmJob:
    _, by = state_of(_first(row, "State") or "")
    code, signal = _exit(_first(row, "ExitCode"))
    step_code, step_signal = _exit(_first(row, "DerivedExitCode"))
    last = _run(row, zone, partitions)
    last = replace(last, end=None) if last.state in OPEN_STATES else last
    return SlurmJob(
        **asdict(last),
        job_id=job_id,
        name=_first(row, "JobName"),
        cancelled_by=by,
        exit_code=code,
        signal=signal,
        user=_first(row, "User"),
        uid=int(uid) if (uid := _first(row, "UID")) and uid.isdecimal() else None,
        account=_first(row, "Account"),
        partition=_first(row, "Partition"),
        time_limit_seconds=_span_seconds(_first(row, "Timelimit")),
        qos=_first(row, "QOS"),
        cluster=_first(row, "Cluster"),
        step_exit_code=step_code,
        step_signal=step_signal,
        earlier=tuple(_run(each, zone, partitions) for each in earlier),
    )


def _run(row: dict[str, str], zone: tzinfo, partitions: Mapping[str, Partition]) -> SlurmRun:
    partition, nodes = partitions.get(row.get("Partition", "")), _count(_first(row, "NNodes"))
    gpus, model, source = _gpus(row, partition)
    most = partition.gpus * nodes if partition and nodes else 0
    state, submit = state_of(_first(row, "State") or "")[0], _time(_first(row, "Submit"), zone)
    has_node = row.get("NodeList") != _NO_NODE
    given = None if has_node or state in OPEN_STATES else submit
    return SlurmRun(
        state=state,
        submit=submit,
        eligible=_time(_first(row, "Eligible"), zone),
        # What gave its last node away or was cancelled in the queue again has a start, and no node.
        start=_time(_first(row, "Start"), zone) if has_node else None,
        end=_time(_first(row, "End"), zone) or given,
        nodes=nodes or None,
        gpus=min(gpus, most) if gpus and most else gpus,
        gpus_stated=gpus if gpus and 0 < most < gpus else None,
        gpu_model=model or None,
        gpus_source=source,
        models=_models(row),
        hosts=(_first(row, "NodeList") or "").removesuffix(_NO_NODE),
    )


def _gpus(row: dict[str, str], partition: Partition | None) -> tuple[float | None, str, str]:
    """Number and model of a row's GPUs, and the column that says so; None where none does.

    No model where several are mixed. Shares of a GPU are a number where the partition is known.
    """
    for column in ("AllocTRES", "ReqTRES"):
        tres = _GPUS.findall(_first(row, column) or "")
        models = [model for model, _ in tres if model]
        # "gres/gpu=8,gres/gpu:h100=8" names the same eight twice.
        counts = [int(number) for model, number in tres if not model] or [int(n) for _, n in tres]
        if counts:
            return sum(counts), models[0] if len(models) == 1 else "", column
        if share := _SHARES.search(row.get(column, "")):
            per_node = dict(partition.shares).get(share[1]) if partition else None
            gpus = partition.gpus * int(share[2]) / per_node if partition and per_node else None
            return gpus, "", column if per_node else ""
    if partition is not None:
        cores = _CORES.search(_first(row, "AllocTRES", "ReqTRES") or "")
        nodes = _count(_first(row, "NNodes")) or 0
        if (gpus := partition.gpus_of(nodes, int(cores[1]) if cores else 0)) is not None:
            return gpus, "", "Partition"
    options = _options(row.get("SubmitLine", ""))
    for match in [*_ASKED.finditer(options)][-1:]:
        unit = "NNodes" if match["gres"] else _ASKED_PER.get(match["per"] or "")
        tasks = _TASKS.search(options) if unit == "NTasks" else None
        per = 1 if unit is None else _count(tasks[1] if tasks else _first(row, unit))
        if per is not None:
            return int(match["number"]) * per, match["model"] or "", "SubmitLine"
    return None, "", ""


def _models(row: dict[str, str]) -> tuple[tuple[str, int], ...]:
    """Number of GPUs by model where a row has several; nothing else is told apart."""
    found = _GPUS.findall(_first(row, "AllocTRES", "ReqTRES") or "")
    models = tuple((model, int(number)) for model, number in found if model)
    return models if len(models) > 1 else ()


def _options(line: str) -> str:
    """The options of a submission; what follows its script or program is of that."""
    words = line.split()
    for before, (number, word) in zip(words, enumerate(words[1:], 1), strict=False):
        is_value = before.startswith("-") and "=" not in before and number > 1
        if not word.startswith("-") and not is_value:
            return " ".join(words[:number])
    return line


def tasks_of(job: SlurmJob) -> Iterator[SlurmJob]:
    """The job; of an array whose tasks share a row, each of its first thousand tasks."""
    match = _ARRAY.fullmatch(job.job_id)
    if match is None:
        yield job
        return
    ranges = (part.partition(":") for part in match["tasks"].split(","))
    tasks = (
        number
        for span, _, step in ranges
        for low, _, high in (span.partition("-"),)
        for number in range(int(low), int(high or low) + 1, int(step or 1) or 1)
    )
    for number in islice(tasks, _MOST_TASKS):
        yield replace(job, job_id=f"{match['array']}_{number}")


def _span_seconds(text: str | None) -> float | None:
    """Seconds of [D-][HH:]MM:SS; None for UNLIMITED and the like."""
    match = _SPAN.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _first(row: dict[str, str], *names: str) -> str | None:
    return next((row[name] for name in names if row.get(name, "") not in _ABSENT), None)


def _exit(text: str | None) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"(\d+):(\d+)", text or "")
    return (int(found[1]), int(found[2]) or None) if found else (None, None)


def _count(text: str | None) -> int | None:
    return int(match[0]) if (match := re.match(r"\d+", text or "")) else None


def _time(text: str | None, zone: tzinfo) -> float | None:
    """Seconds since 1970, of a time in the zone or of seconds as SLURM_TIME_FORMAT=%s prints."""
    if text is not None and text.isdecimal():
        return float(text) or None
    try:
        return datetime.fromisoformat(text or "").replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None
