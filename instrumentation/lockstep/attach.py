"""``lockstep.attach``: creates the monitor of this rank and hooks it to model and optimizer."""

import atexit
import functools
import logging
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from lockstep.guard import Parts, outcome_of
from lockstep.hangs.worker_server import flight_recorder_settings
from lockstep.identity.rank_identity import coordinates_of, identity_from, mesh_with_stage
from lockstep.identity.ranks import RankPosition, find_position, is_group_ready
from lockstep.identity.requeues import FIRST_ATTEMPT, restarts_of, with_attempt
from lockstep.identity.scheduler import slurm_job_of
from lockstep.monitor.deferred import DeferredMonitor
from lockstep.monitor.live import LiveMonitor
from lockstep.monitor.noop import NoopMonitor
from lockstep.monitor.protocol import Monitor
from lockstep.monitor.step_watch import settings_from, watch_steps
from lockstep.process_exit import record_last_error, wait_for_gloo
from lockstep.telemetry.logs import SWITCH, follow, json_logs
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS
from lockstep_records.files.jobs import find_root, page_path
from lockstep_records.files.roots import harm_of
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import PageError, read_page
from lockstep_records.page.writer import NoPageError, PageWriter, RankIdentity, rows_for


def check_page_is_free(path: Path, identity: RankIdentity) -> None:
    """Does nothing where the page of a rank can be created.

    Raises:
        NoPageError: there is one; the message says whose.
    """
    if not path.exists():
        return
    try:
        page = read_page(path)
    except PageError:
        return  # the writer refuses the file itself
    rank, job_id, pid = identity.rank, identity.job_id, page.identity["pid"]
    if pid == os.getpid():
        raise NoPageError(
            f"this process has attached before, as rank {rank} of job {job_id!r}; "
            "one training a process has a page"
        )
    if find_process(page) is None:
        raise NoPageError(
            f"rank {rank} of job {job_id!r} was process {pid} of the same launch, which has ended; "
            "give the second program another LOCKSTEP_JOB_ID"
        )
    if page.identity["launch_key"] == identity.launch_key and identity.launch_key:
        raise NoPageError(
            f"processes {pid} and {os.getpid()} of job {job_id!r} both say that they are rank"
            f" {rank}; attach after init_process_group, or have the launcher set RANK"
        )
    raise NoPageError(
        f"job id {job_id!r} is in use: its rank {rank}, process {pid}, still runs; "
        "wait for its end or set LOCKSTEP_JOB_ID to another id"
    )


def announce_job(job: Path, identity: RankIdentity, *, is_default_root: bool) -> None:
    """Says on rank 0 what ``lockstep run`` would have said: the job's id, and how to read it."""
    if identity.rank == 0:
        name = identity.job_id if is_default_root else job
        sys.stderr.write(f"lockstep: job {identity.job_id}; its report: lockstep report {name}\n")
        if harm := harm_of(job.parents[1]):
            sys.stderr.write(f"lockstep: {harm}\n")


if TYPE_CHECKING:
    import torch
    from torch.distributed.pipelining.schedules import _PipelineSchedule

log = logging.getLogger("lockstep")


def disabled() -> Monitor:
    """A monitor that records nothing and has the same methods."""
    return NoopMonitor()


def attach(
    model: "torch.nn.Module | Iterable[torch.nn.Module] | None" = None,
    optimizer: "torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None" = None,
    *,
    schedule: "_PipelineSchedule | None" = None,
    mesh: Mapping[str, int] | None = None,
    root: str | Path | None = None,
    environment: Mapping[str, str] = os.environ,
    rows: int | None = None,
) -> Monitor:
    """Creates the monitor of this rank and hooks it to its model and optimizers.

    The same models and optimizers again, as in a function that trains an epoch, have theirs.
    Never raises: where no page can be had, it logs the reason and returns the disabled monitor.

    Args:
        model: what the loop calls, or several such: plain, DDP, ``fully_shard``, parallel layers,
            stages of a pipeline; compiled or not. None when the loop enters its phases itself.
        optimizer: one optimizer or several.
        schedule: of the stages of a pipeline, from ``torch.distributed.pipelining``.
        mesh: coordinates of the rank by axis (dp, fsdp, pp, tp, cp, ep), or torch's DeviceMesh.
        root: folder of all jobs, on a tmpfs; LOCKSTEP_DIR, /run/lockstep or /dev/shm/lockstep.
        environment: RANK, WORLD_SIZE, LOCKSTEP_JOB_ID and the like; LOCKSTEP=off turns everything
            off.
        rows: number of steps in the page's ring; by the room of its tmpfs where left out.
    """
    if environment.get("LOCKSTEP", "on") == "off":
        return NoopMonitor()
    given, job = (*_flat(model), *_flat(optimizer)), (root, environment)
    if (attached := _Attached.find(given, job)) is not None:
        return attached
    os.environ.update(flight_recorder_settings(os.environ))  # for a group that is made later
    page = _PageRequest(mesh, schedule, root, environment, rows)
    monitor = _create(page, model, optimizer, schedule)
    _Attached.keep(monitor, given, job)
    return monitor


def _create(page: "_PageRequest", model: Any, optimizer: Any, schedule: Any) -> Monitor:
    """The monitor of this rank, or of the one that it will be."""
    position = outcome_of(find_position, page.environment)
    if isinstance(position, Exception):
        return _log_reason(position)
    if position is None:
        return _attach_later(page, model, optimizer, schedule)
    return _attach_now(page, position, functools.partial(_watch_model, model, optimizer, schedule))


def _flat(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple) else () if given is None else (given,)


class _Attached:
    """The newest monitor, and weakly what it was attached to."""

    _monitor: Monitor | None = None
    _given: "tuple[weakref.ref[Any], ...]" = ()
    _job: object = None

    @classmethod
    def find(cls, given: tuple[Any, ...], job: object) -> Monitor | None:
        """The monitor that records just these objects for the same job, while it does."""
        objects = [reference() for reference in cls._given]
        is_same = 0 < len(objects) == len(given) and all(map(operator.is_, objects, given))
        is_same = is_same and cls._job == job
        return cls._monitor if is_same and cls._monitor and cls._monitor.enabled else None

    @classmethod
    def keep(cls, monitor: Monitor, given: tuple[Any, ...], job: object) -> None:
        """Has this monitor found, but where something given can be held in no other way."""
        references = outcome_of(lambda: tuple(map(weakref.ref, given)))
        cls._given = () if isinstance(references, Exception) else references
        cls._monitor, cls._job = monitor, job


def _attach_now(
    page: "_PageRequest", position: RankPosition, watch: Callable[[LiveMonitor], object]
) -> Monitor:
    """The monitor of a rank that is known; the disabled one where no page can be had."""
    monitor = outcome_of(_create_monitor, page, position)
    if isinstance(monitor, Exception):
        return _log_reason(monitor)
    watch(monitor)
    # A loop that forgets close() would look like one that was killed. A process of multiprocessing
    # that was forked runs nothing of atexit, and one that was spawned has lost its exception then.
    atexit.register(_close_at_exit, monitor)
    if parent_process() is not None:
        Finalize(None, _close_at_exit, (monitor,), exitpriority=0)
    return monitor


def _attach_later(
    page: "_PageRequest", model: Any, optimizer: Any, schedule: "_PipelineSchedule | None"
) -> Monitor:
    """The monitor of a rank that the process group will know."""
    from lockstep.strategies.watch import call_at_group, watch_at_first_forward  # noqa: PLC0415  # loads torch, which such a rank has or will have

    def create() -> Monitor:
        watch = functools.partial(_watch_model, schedule=schedule)
        position = outcome_of(find_position, page.environment)
        if isinstance(position, Exception):
            return _log_reason(position)
        return _attach_now(
            page,
            position or RankPosition(),
            lambda monitor: watch_at_first_forward(
                model, optimizer, functools.partial(watch, monitor=monitor)
            ),
        )

    monitor = DeferredMonitor(create, is_group_ready)
    outcome_of(call_at_group, monitor.create_monitor)
    return cast("Monitor", monitor)


def _log_reason(error: Exception) -> Monitor:
    reason = str(error) if isinstance(error, (NoPageError, ValueError)) else repr(error)
    log.warning("the monitor is off, training goes on: %s", reason)
    return NoopMonitor()


class _PageRequest(NamedTuple):
    """Arguments of ``attach`` that concern the page."""

    mesh: Mapping[str, int] | None
    schedule: "_PipelineSchedule | None"
    root: str | Path | None
    environment: Mapping[str, str]
    rows: int | None


def _create_monitor(request: _PageRequest, position: RankPosition) -> LiveMonitor:
    """A monitor with its page, its logs and the observer of its steps."""
    mesh, schedule, root, environment, rows = request
    parts = Parts()
    settings = settings_from(environment)
    mesh = parts.run("pipeline", coordinates_of, mesh)
    mesh = parts.run("pipeline", mesh_with_stage, mesh, schedule) or mesh
    identity = identity_from(environment, mesh, parts, position)
    folder = Path(root) if root else find_root(environment)
    is_launched = bool(environment.get(FIRST_ATTEMPT))
    identity = (
        parts.run("earlier_attempts", with_attempt, identity, folder, environment) or identity
    )
    # Logs and spans bear the same attempt.
    first_attempt = identity.attempt - restarts_of(environment)
    environment = {**environment, FIRST_ATTEMPT: str(first_attempt)}
    path = page_path(folder, identity.job_id, identity.attempt, identity.rank)
    check_page_is_free(path, identity)
    page = PageWriter(path, identity, rows or rows_for(folder, environment))
    if not is_launched and (position.launcher or slurm_job_of(environment)):
        announce_job(path.parents[1], identity, is_default_root=root is None)
    # 0 turns the watch off, and steps are still judged by the default.
    hang_timeout_seconds = settings.timeouts.step_seconds or HANG_TIMEOUT_SECONDS
    monitor = outcome_of(
        LiveMonitor, page, environment, hang_timeout_seconds=hang_timeout_seconds, parts=parts
    )
    if isinstance(monitor, Exception):
        page.close()
        raise monitor
    parts.run("logs", follow, page)
    if environment.get(SWITCH):
        parts.run("logs", json_logs, environment=environment)
    watch_steps(monitor, path, identity, settings)
    parts.run("last_error", record_last_error, path, parts)
    return monitor


def _watch_model(
    model: "torch.nn.Module | Iterable[torch.nn.Module] | None",
    optimizer: "torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None",
    schedule: "_PipelineSchedule | None",
    monitor: LiveMonitor,
) -> None:
    if model is not None or optimizer is not None or schedule is not None:
        monitor.parts.run("forward", _import_and_watch, monitor, model, optimizer, schedule)


def _import_and_watch(monitor: LiveMonitor, model: Any, optimizer: Any, schedule: Any) -> None:
    from lockstep.strategies.watch import watch  # noqa: PLC0415  # torch is loaded only with a model

    watch(monitor, model, optimizer, schedule)


def _close_at_exit(monitor: LiveMonitor) -> None:
    """Closes for a loop that did not, as failed where an exception ended it; torch may leave."""
    monitor.close(failed=getattr(sys, "last_value", None) is not None)
    outcome_of(wait_for_gloo)
