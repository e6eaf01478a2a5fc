"""``lockstep.attach``: creates the monitor of this rank and hooks it to model and optimizer."""

import atexit
import functools
import logging
import operator
import os
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import parent_process
from multiprocessing.util import Finalize
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from lockstep.guard import Parts, outcome_of
from lockstep.hangs.worker_server import flight_recorder_settings
from lockstep.identity.rank_identity import coordinates_of, identity_from, mesh_with_stage
from lockstep.identity.ranks import RankPosition, find_position, is_group_ready
from lockstep.identity.requeues import FIRST_ATTEMPT, restarts_of, with_attempt
from lockstep.identity.scheduler import slurm_job_of
from lockstep.monitor.live import LiveMonitor
from lockstep.monitor.protocol import Monitor, NoopMonitor
from lockstep.monitor.step_watch import settings_from, watch_steps
from lockstep.recorder.batches import TimedLoader
from lockstep.telemetry.logs import SWITCH, follow, json_logs
from lockstep_catalogue.vocabulary import SYNTHETIC_CLASS
from lockstep_outcomes.progress.hangs import HANG_TIMEOUT_SECONDS
from lockstep_records.files.jobs import find_root, page_path
from lockstep_records.files.last_output import RankError, write_error
from lockstep_records.files.roots import harm_of
from lockstep_records.page.liveness import find_process
from lockstep_records.page.reader import PageError, read_page
from lockstep_records.page.writer import NoPageError, PageWriter, RankIdentity, rows_for

T = TypeVar("T")
_HOT = ("enter_phase", "enter_code", "first_arrival", "wait_begins", "wait_ended", "step")


class DeferredMonitor:
    """Hands every call to the monitor that ``create`` gives, once there is one.

    Args:
        create: makes the monitor of this rank; raises nothing.
        is_due: whether the rank is known.

    Attributes:
        monitor: takes the calls; one that does nothing until the rank is known.
    """

    def __init__(self, create: Callable[[], Monitor], is_due: Callable[[], bool]) -> None:
        self._create, self._is_due = create, is_due
        self.monitor: Monitor = NoopMonitor()
        self._is_pending = True
        self._description: dict[str, float | None] = {}

    def create_monitor(self) -> None:
        """Creates the monitor, unless it has been."""
        if not self._is_pending:
            return
        self._is_pending = False
        self.monitor = self._create()
        if self._description:
            self.monitor.describe(**self._description)
        # The loop calls it directly from now on, as it would one that was there from the start.
        for name in _HOT:
            setattr(self, name, getattr(self.monitor, name))

    def create_when_due(self) -> None:
        """Creates the monitor once the rank is known."""
        if self._is_pending and self._is_due():
            self.create_monitor()

    def __getattr__(self, name: str) -> Any:
        """What is not here is the monitor's, which is created first where it is called and due."""
        value = getattr(self.monitor, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            self.create_when_due()
            return getattr(self.monitor, name)(*args, **kwargs)

        return call

    def step(self, **fields: Any) -> None:
        """Ends the step; the first one ends the time in which a group is waited for."""
        self.create_monitor()
        self.monitor.step(**fields)

    def prepare(self, loader: Iterable[T]) -> Iterable[T]:
        """The same batches; the time until each is there counts as waiting for data."""
        return TimedLoader(self, loader)

    def describe(
        self, *, flops_per_token: float | None = None, peak_flops: float | None = None
    ) -> None:
        """Sets what MFU is computed from, now or when there is a page."""
        self.create_when_due()
        given = {"flops_per_token": flops_per_token, "peak_flops": peak_flops}
        if self._is_pending:
            self._description |= {name: value for name, value in given.items() if value is not None}
        self.monitor.describe(**given)

    def close(self, *, failed: bool = False) -> None:
        """Ends the monitor; one that was never created stays so."""
        self._is_pending = False
        self.monitor.close(failed=failed)


_THREADS = Path("/proc/self/task")
_NAME = "pt_gloo_runloop"
_TIMEOUT_SECONDS = 0.5
_POLL_SECONDS = 0.001
# A thread that waits for the interpreter's lock sleeps too, until this one sleeps.
_IDLE_POLLS = 2


def wait_for_gloo(timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
    """Returns once gloo's threads wait for work, or after the time-out."""
    threads = [task for task in _THREADS.iterdir() if _read(task / "comm").strip() == _NAME]
    deadline = time.monotonic() + timeout_seconds
    num_idle_polls = 0
    # A destroyed group has its threads for as long as a mesh or a sharded module refers to it.
    while threads and num_idle_polls < _IDLE_POLLS and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        is_idle = all(_is_asleep(task) for task in threads)
        num_idle_polls = num_idle_polls + 1 if is_idle else 0


def _is_asleep(thread: Path) -> bool:
    state = _read(thread / "stat").rpartition(")")[2].split()
    return not state or state[0] == "S"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the thread has ended
        return ""


def record_last_error(page: Path, parts: Parts) -> None:
    """Sets a hook in front of ``sys.excepthook``, which writes the error beside the page."""
    passed_on, process = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, stack: TracebackType | None) -> None:
        # A forked child has the hook too, and an interrupt does not count as a failure.
        if os.getpid() == process and issubclass(kind, Exception):
            parts.run("last_error", _write, page, error, stack)
        passed_on(kind, error, stack)

    sys.excepthook = hook
    if parent_process() is not None:
        # Before the monitor is closed, at priority 0.
        Finalize(None, parts.run, ("last_error", _record_error_of_child, page), exitpriority=1)


def _record_error_of_child(page: Path) -> None:
    """Records what ends a process of multiprocessing, which never reaches ``sys.excepthook``."""
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):  # torch's spawn exits while it handles the loop's exception
        error = error.__context__ if error.code else None
    if isinstance(error, Exception):
        sys.last_value = error
        _write(page, error, error.__traceback__)


def _write(page: Path, error: BaseException, stack: TracebackType | None) -> None:
    frames = traceback.extract_tb(stack)
    innermost = frames[-1] if frames else None
    kind = type(error)
    # As the interpreter prints it: a built-in has no module before its name.
    prefix = "" if kind.__module__ in {"builtins", "__main__"} else f"{kind.__module__}."
    rank_error = RankError(
        source="except_hook",
        type=f"{prefix}{kind.__qualname__}",
        message=str(error),
        file=innermost.filename if innermost else None,
        line=innermost.lineno if innermost else None,
        function=innermost.name if innermost else None,
        traceback="".join(traceback.format_exception(error)),
        time=time.time(),
    )
    write_error(page, rank_error)


def check_page_is_free(path: Path, identity: RankIdentity) -> None:
    """Does nothing where the page of a rank can be created; NoPageError says whose there is."""
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
        if identity.job_class != SYNTHETIC_CLASS:  # a canary's folder goes when it ends
            report = f"its report: lockstep report {name}"
            sys.stderr.write(f"lockstep: job {identity.job_id}; {report}\n")
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


def _watch_model(model: Any, optimizer: Any, schedule: Any, monitor: LiveMonitor) -> None:
    given = (model, optimizer, schedule)
    if any(each is not None for each in given):  # torch is loaded only then
        watch = "lockstep.strategies.watch:watch"
        monitor.parts.run("forward", lambda: resolve_name(watch)(monitor, *given))


def _close_at_exit(monitor: LiveMonitor) -> None:
    """Closes for a loop that did not, as failed where an exception ended it; torch may leave."""
    monitor.close(failed=getattr(sys, "last_value", None) is not None)
    outcome_of(wait_for_gloo)
