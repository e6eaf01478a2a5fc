"""Starts a training job by torchrun's machinery, outlives its workers and reports its outcome."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from lockstep.hangs.node_watch import watch_for_hangs
from lockstep.hangs.worker_server import flight_recorder_settings
from lockstep.identity.rank_identity import launched_job_id, scheduled_job_of
from lockstep.identity.requeues import FIRST_ATTEMPT, requeues_of
from lockstep.identity.scheduler import ALLOCATION
from lockstep.launch.description import JobDescription, judge_end, num_gpus_of_node
from lockstep.launch.job import Job
from lockstep.launch.nccl_plugin import plugin_settings
from lockstep.launch.options import (
    DESCRIPTION_OPTIONS,
    LEDGER_OPTIONS,
    TORCHRUN_OPTIONS,
    job_options,
    rendezvous_fields,
)
from lockstep.launch.progress import ProgressWatch
from lockstep.sidecar import run_sidecars
from lockstep.sinks import sinks_of
from lockstep.telemetry.export import exporter_of
from lockstep.telemetry.logs import SWITCH
from lockstep_cli.options import bad_input
from lockstep_outcomes.first_line import first_line
from lockstep_records.delivery.duty import DeliveryDuty
from lockstep_records.delivery.sender import LedgerAddress, Sender
from lockstep_records.delivery.spool import EventSpool
from lockstep_records.distribution import install_hint
from lockstep_records.events.event import PREEMPTED, Event, append_event, node_name, read_events
from lockstep_records.file_access.foreign_files import ForeignFileError
from lockstep_records.file_access.own_files import open_own_file, open_own_folder
from lockstep_records.files.job_status import remove_ended_jobs
from lockstep_records.files.jobs import (
    CANDIDATE_ROOTS,
    count_attempts,
    create_job_folder,
    list_attempts,
    list_pages,
    new_job_id,
    newest_pages,
)
from lockstep_records.files.roots import harm_of
from lockstep_records.files.spans import trace_of
from lockstep_records.page.liveness import find_process
from lockstep_records.page.lock import Holder, PageLock, holder_of
from lockstep_records.text.durations import format_duration
from lockstep_records.text.printable import printable

LOCK_NAME = "launcher.lock"
_APART = CANDIDATE_ROOTS[-1].parent  # a tmpfs in which every user may create folders


class ForeignFolderError(ValueError):
    """The folder of the job's id is not the user's own; the text says whose, and what helps."""


class JobInUseError(ValueError):
    """The launcher or a rank of the job's id runs; the text says which, and what helps."""


@contextmanager
def claim_job(job: Job, environment: Mapping[str, str] = os.environ) -> Iterator[int]:
    """Holds the job's folder during the block; gives the number of the job's next attempt.

    Raises ForeignFolderError, JobInUseError, or ValueError where it cannot be created.
    """
    with _explained_refusals(job):
        _check_unused(job)
        remove_ended_jobs(job.root)
        lock = _lock_folder(job)
    try:
        yield max(count_attempts(job.folder), requeues_of(environment))
    finally:
        lock.release()


@contextmanager
def _explained_refusals(job: Job) -> Iterator[None]:
    """Turns an error of the file system into a sentence with its remedy."""
    try:
        yield
    except ForeignFileError as error:
        raise ForeignFolderError(
            f"job id {job.job_id!r} cannot be used: {error}; choose another id"
        ) from error
    except OSError as error:
        raise ValueError(
            f"folder {job.folder} cannot be created ({error.strerror}); "
            "set LOCKSTEP_DIR to a writable folder on a tmpfs"
        ) from error


def move_apart(job: Job, error: ForeignFolderError) -> Job:
    """The same job in a new folder of all jobs, which only its user can read.

    An id can be guessed and its folder created before its job starts: that must not keep the job
    from training.

    Raises:
        ForeignFolderError: the given error, where no such folder can be created.
    """
    try:
        return replace(job, root=Path(tempfile.mkdtemp(prefix=f"{job.root.name}-", dir=_APART)))
    except OSError:
        raise error from None


def _check_unused(job: Job) -> None:
    """Refuses an id whose launcher or one of whose ranks runs."""
    if not os.path.lexists(job.folder):
        return
    with open_own_folder(job.folder):
        launcher = _launcher_of(job.folder)
    if launcher is not None:
        raise JobInUseError(_describe_holder(job, "its launcher", launcher.pid))
    for page in newest_pages(job.folder):
        process = find_process(page)
        if process is not None:
            raise JobInUseError(
                _describe_holder(job, f"its rank {page.identity['rank']}", process.pid)
            )


def _launcher_of(folder: Path) -> Holder | None:
    try:
        return holder_of(folder / LOCK_NAME)
    except OSError:
        return None  # there is none, or the kernel has no such locks


def _describe_holder(job: Job, holder: str, pid: int | None) -> str:
    number = "" if pid is None else f" (process {pid})"
    return (
        f"job id {job.job_id!r} is in use under {job.root}/jobs: {holder}{number} still runs; "
        "wait for its end or choose another id"
    )


def _lock_folder(job: Job) -> PageLock:
    if not os.path.lexists(job.folder):
        create_job_folder(job.folder)
    lock = PageLock(open_own_file(job.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT))
    # Another launcher may have been quicker since the check.
    if not lock.is_held and (launcher := _launcher_of(job.folder)) is not None:
        raise JobInUseError(_describe_holder(job, "its launcher", launcher.pid))
    return lock


log = logging.getLogger("lockstep")
_POLL_SECONDS = 1.0
# The ranks have ended by then. What is left waits on the node for the next launcher or an agent.
_DRAIN_SECONDS = 10.0


@contextmanager
def deliver_events(job: Job) -> Iterator[None]:
    """Delivers during the block, and after it for ten seconds at most what the block left."""
    if job.ledger is None:
        yield
        return
    delivery = _LauncherDelivery(job)
    thread = threading.Thread(target=delivery.run, name="delivery", daemon=True)
    thread.start()
    try:
        yield
    finally:
        delivery.finish()
        thread.join(_DRAIN_SECONDS + 2 * _POLL_SECONDS)


class _LauncherDelivery:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._duty = DeliveryDuty(job.root)
        self._over = threading.Event()
        self._deadline_seconds = float("inf")

    def finish(self) -> None:
        """Asks the thread to send what is left and to end."""
        self._deadline_seconds = time.monotonic() + _DRAIN_SECONDS
        self._over.set()

    def run(self) -> None:
        """Sends while it is this launcher's duty, until the job is over and nothing waits."""
        sender: Sender | None = None
        spool: EventSpool | None = None
        while True:
            is_last = self._over.is_set()
            took = False
            if self._duty.take():
                if sender is None:
                    spool, sender = self._open()
                took = sender.run_once()
            done = spool is None or not spool.num_pending
            if is_last and (done or time.monotonic() > self._deadline_seconds):
                break
            if not took:
                # A job that is over is not waited for by the second.
                time.sleep(_POLL_SECONDS / 10) if is_last else self._over.wait(_POLL_SECONDS)
        if spool is not None:
            if spool.num_pending:
                log.warning("%d events wait on this node for the ledger", spool.num_pending)
            spool.close()
        self._duty.release()

    def _open(self) -> tuple[EventSpool, Sender]:
        assert self._job.ledger is not None
        # On the tmpfs, which all launchers of this user share: the next one sends what is left.
        spool = EventSpool(self._job.root, self._job.root / f"spool-{os.getuid()}.sqlite")
        return spool, Sender(spool, self._job.ledger, (self._job.cluster, node_name()))


BAD_INPUT = 2


def run_job(job: Job) -> int:
    """Runs a job to its end.

    Returns:
        0 when every rank succeeded, 2 when every rank that failed found bad input, 75 when the
        ranks stopped in good order on request, 130 or 143 when a signal stopped the launcher and
        they did not, else 1.
    """
    with claim_job(job) as first_attempt:
        return _run_claimed(job, first_attempt)


def _run_claimed(job: Job, first_attempt: int) -> int:
    """Runs a job whose folder is held; returns as ``run_job``."""
    children = (*exporter_of(job.folder, job.cluster), *sinks_of(job.summary_to, job.folder))
    click.echo(f"lockstep: job {job.job_id}, pages in {job.folder}", err=True)
    if harm := harm_of(job.root):
        click.echo(f"lockstep: {harm}", err=True)
    append_event(job.folder, _event(job, "job_started", first_attempt, **_description(job)))
    from lockstep.launch.workers import run_workers  # noqa: PLC0415  # loads torch: only when a job starts

    progress = ProgressWatch(job.folder, job.job_id)
    environment = _worker_environment(job, first_attempt)
    hang_watch = watch_for_hangs(job.folder, job.job_id, job.hang_timeouts)
    with deliver_events(job), run_sidecars(children):
        with environment, _job_agent(job), hang_watch, progress.watching():
            end = run_workers(job, progress, first_attempt)
        progress.finish(end.attempt, time.time())
        exit_code = _exit_status(end.exit_codes, end.signal_number)
        end_fields = judge_end(job.folder, end) | {"exit_code": exit_code}
        for kind in ("attempt_ended", "job_finished"):
            append_event(job.folder, _event(job, kind, end.attempt, **end_fields))
    return exit_code


def _description(job: Job) -> dict[str, Any]:
    """Fields of job_started: what the job is, of which every node says the same, and this node."""
    num_gpus = num_gpus_of_node()
    shape: dict[str, Any] = {
        "nproc_per_node": job.nproc_per_node,
        "num_nodes": job.nnodes,
        "world_size": job.nproc_per_node * job.nnodes,
        "source": "lockstep",
    }
    if num_gpus:
        shape["num_gpus"] = num_gpus * job.nnodes
    project = {"project": job.project} if job.project else {}
    return job.description.event_fields() | project | shape


def _event(job: Job, kind: str, attempt: int, **fields: object) -> Event:
    return Event(kind=kind, job_id=job.job_id, attempt=attempt, fields=fields)


@contextmanager
def _worker_environment(job: Job, first_attempt: int = 0) -> Iterator[None]:
    """Sets the environment variables that the workers inherit; restores them after the block."""
    added = {
        "LOCKSTEP_JOB_ID": job.job_id,
        ALLOCATION: os.environ.get("SLURM_JOB_ID", ""),
        FIRST_ATTEMPT: str(first_attempt),
        "LOCKSTEP_DIR": str(job.root),
        "LOCKSTEP_CLUSTER": job.cluster,
        "LOCKSTEP_PROJECT": job.project,
        "TRACEPARENT": trace_of(job.job_id).traceparent(),
        "LOCKSTEP_HANG_TIMEOUT": format_duration(job.hang_timeout_seconds),
        "LOCKSTEP_PAUSE_TIMEOUT": format_duration(job.pause_timeout_seconds),
        # Each attempt needs a store of its own: restarts over gloo fail in torch 2.13 without it.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # As torchrun does: each rank would otherwise start a thread for every core of the node.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    added |= flight_recorder_settings(os.environ)
    if job.log_json:
        added[SWITCH] = "1"
    if job.plugin:
        added |= plugin_settings(os.environ)
    # What is not given stays as the scheduler has it.
    if job.description.queue:
        added["LOCKSTEP_QUEUE"] = job.description.queue
    if job.description.job_class:
        added["LOCKSTEP_JOB_CLASS"] = job.description.job_class
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _job_agent(job: Job) -> Iterator[None]:
    """Runs an agent for this job's pages, where no agent runs on the node."""
    if not job.serve:
        yield
        return
    # By its command: components of one layer do not import each other.
    command = [sys.executable, "-P", "-m", "lockstep_cli.main", "agent", "--listen", job.serve]
    command += ["--dir", str(job.root), "--cluster", job.cluster]
    # Not the folder of the node's own agent, which two agents must not share.
    agent = subprocess.Popen([*command, "--state", str(job.folder / "agent-state")])
    try:
        yield
    finally:
        agent.terminate()
        agent.wait(timeout=10)


def _exit_status(exit_codes: Sequence[int], signal_number: int | None) -> int:
    """Exit status of a job, by its workers' codes and the signal that stopped the launcher."""
    failed = [code for code in exit_codes if code != 0]
    if set(failed) == {PREEMPTED}:
        return PREEMPTED
    if signal_number is not None:
        return 128 + signal_number
    if not failed:
        return 0
    # Torch stops the other workers by SIGTERM when the first has failed.
    is_bad_input = BAD_INPUT in failed and set(failed) <= {BAD_INPUT, -signal.SIGTERM}
    return BAD_INPUT if is_bad_input else 1


def _print_outcome(job: Job, exit_code: int) -> None:
    """Prints for each attempt what became of it, and the exit status."""
    events = read_events(job.folder)
    # Not of the times that the job was started before.
    started = [n for n, event in enumerate(events) if event.kind == "job_started"]
    ends = [e for e in events[started[-1] if started else 0 :] if e.kind == "attempt_ended"]
    for event in ends[:-1]:
        line = printable(first_line(event.fields))
        click.echo(f"lockstep: attempt {event.attempt}: {line}", err=True)
    last = f" {printable(first_line(ends[-1].fields))}" if ends else ""
    status = f"Exit status {exit_code}; lockstep report {job.job_id} tells more."
    click.echo(f"lockstep: job {job.job_id}:{last} {status}", err=True)
    attempts = list_attempts(job.folder, 1) if ends else []
    missing = job.nproc_per_node - (len(list_pages(attempts[-1])) if attempts else 0)
    if ends and missing > 0:
        click.echo(
            f"lockstep: {missing} of {job.nproc_per_node} ranks here had no page; their logs say"
            " why, or they attach nothing",
            err=True,
        )


@click.command(context_settings={"allow_interspersed_args": False})
@job_options
@click.option(
    "-m",
    "--module",
    is_flag=True,
    envvar="PET_MODULE",
    help="PROGRAM is a module, as for python -m.",
)
@click.option(
    "--plugin",
    is_flag=True,
    help="Have NCCL load Lockstep's plugin: steps and hangs of a program without a line of ours.",
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(program: str, arguments: tuple[str, ...], *, module: bool, **options: Any) -> int:
    """Run PROGRAM with ARGUMENTS on every rank, as torchrun does, and record its outcome.

    Pages and events lie under DIR/jobs/JOB_ID. Of ended jobs the newest 20 stay there, while they
    take less than a quarter of the tmpfs; an archive keeps the others.
    """
    if not module and not Path(program).is_file():
        raise click.UsageError(
            f"program {program!r} is not a file; give a script, or -m and a module"
        )
    return launch(("-m", program, *arguments) if module else (program, *arguments), **options)


def launch(program: Sequence[str], **options: Any) -> int:
    """Runs a program to its end as a job with fields of ``Job``; its status, or UsageError."""
    if find_spec("torch") is None:
        raise click.UsageError(
            "the ranks are started by torch, which is not installed here; install torch or "
            f"{install_hint('trainer')}"
        )
    with bad_input():
        job = _job_of(program, options)
        try:
            exit_code = run_job(job)
        except ForeignFolderError as error:
            job = move_apart(job, error)
            click.echo(f"lockstep: {error}; this run is recorded in {job.root}, where no agent"
                       " of the node reads it", err=True)  # fmt: skip
            exit_code = run_job(job)
        except JobInUseError:
            # Two launchers in one allocation or pod: the second is another part of the same job.
            if options.get("job_id") or job.nnodes > 1 or not scheduled_job_of(os.environ):
                raise
            job = replace(job, job_id=new_job_id())
            exit_code = run_job(job)
    _print_outcome(job, exit_code)
    return exit_code


def _job_of(program: Sequence[str], options: Mapping[str, Any]) -> Job:
    """The job of some options; those that are empty take the default."""
    torchrun = {name: options[name] for name in TORCHRUN_OPTIONS if name in options}
    given = {
        name: value
        for name, value in options.items()
        if value not in {None, ""} and name not in TORCHRUN_OPTIONS
    }
    if torchrun:
        given |= rendezvous_fields(torchrun, given.get("endpoint", ""), given.get("nnodes", 1))
    nnodes, endpoint = given.get("nnodes", 1), given.get("endpoint", "")
    # Several nodes without an endpoint are refused by the job itself.
    if "job_id" not in given and (endpoint or nnodes == 1):
        given["job_id"] = launched_job_id(os.environ, endpoint, nnodes) or new_job_id()
    described = {name: given.pop(name) for name in DESCRIPTION_OPTIONS if name in given}
    url, token, ca = (given.pop(name, None) for name in LEDGER_OPTIONS)
    address = LedgerAddress(url=url, token_file=token, ca_file=ca) if url else None
    return Job(
        program=tuple(program), description=JobDescription(**described), ledger=address, **given
    )
