"""An instrumentation point: one attribute of torch that Lockstep replaces or reads.

The attributes that are only read stand here; ``table`` adds those that are replaced. Nothing here
loads torch before a point is looked up.
"""

import inspect
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

log = logging.getLogger("lockstep")

ORIGINAL = "lockstep_original"
"""Attribute of every replacement; its value is the replaced object."""

Wrapper = Callable[[Any], Any]
Group = Literal[
    "backward",
    "ddp",
    "evaluations",
    "collectives",
    "functional",
    "fsdp",
    "graphs",
    "groups",
    "loaders",
    "saves",
    "pipeline",
    "stage",
    "read",
]


@dataclass(frozen=True, slots=True)
class InstrumentationPoint:
    """One attribute of torch.

    Attributes:
        group: points that are installed at the same moment; ``stage`` marks what is replaced on the
            user's objects, and ``read`` what is never replaced.
        owner: ``module`` or ``module:path`` of what holds the attribute.
        attribute: its name there.
        without_it: what is lost on a torch that lacks it; the end of a sentence in the log.
        wrap: builds the replacement from the original; None for a point that is only read.
        parameters: names of parameters that the original must have.
        requires: ``module:path`` of what must be there too, for without it the point is of
            no use.
        is_optional: nothing is lost where it is missing; it is never loaded for it.
    """

    group: Group
    owner: str
    attribute: str
    without_it: str
    wrap: Wrapper | None = None
    parameters: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    is_optional: bool = False

    @property
    def path(self) -> str:
        """Dotted path of the attribute, for people."""
        return f"{self.owner}.{self.attribute}".replace(":", ".")


# Torch has no public way to any of these.
# fmt: off
QUEUE_CALLBACK = InstrumentationPoint(
    "read", "torch.autograd:Variable._execution_engine", "queue_callback", "DDP's synchronisation counts as backward")
BUCKET_STATISTICS = InstrumentationPoint(
    "read", "torch.nn.parallel:DistributedDataParallel", "_get_ddp_logging_data",
    "DDP's all-reduces have no size, and its backward has a hook on the graph")
GRAPH_TASK = InstrumentationPoint(
    "read", "torch._C", "_current_graph_task_id", "waits of a backward on a GPU count as backward")
GROUP_RESOLVER = InstrumentationPoint(
    "read", "torch.distributed.distributed_c10d", "_resolve_process_group", "functional collectives have no bus bandwidth")
WORKER_SERVER = InstrumentationPoint(
    "read", "torch._C._distributed_c10d", "_WorkerServer", "a hang leaves no Flight Recorder dump")
START_WORKERS = InstrumentationPoint(
    "read", "torch.distributed.elastic.agent.server.local_elastic_agent:LocalElasticAgent", "_start_workers",
    "the launcher cannot tell how each rank ended", parameters=("worker_group",))
READ = (QUEUE_CALLBACK, BUCKET_STATISTICS, GRAPH_TASK, GROUP_RESOLVER, WORKER_SERVER, START_WORKERS)
# fmt: on

_reported: set[str] = set()


def owner_of(path: str) -> Any:
    """What ``module:path`` names; None where this torch has none."""
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return None


def is_present(point: InstrumentationPoint) -> bool:
    """Whether this torch has the attribute, its parameters and all that it requires."""
    owner = owner_of(point.owner)
    return (
        hasattr(owner, point.attribute)
        and _has_parameters(getattr(owner, point.attribute), point.parameters)
        and all(owner_of(path) is not None for path in point.requires)
    )


def find(point: InstrumentationPoint) -> Any:
    """The attribute of a point; None where it is not present."""
    return getattr(owner_of(point.owner), point.attribute) if is_present(point) else None


def find_or_report(point: InstrumentationPoint) -> Any:
    """The same; that it is missing is logged once in a process."""
    attribute = find(point)
    if attribute is None:
        report_missing([point])
    return attribute


def report_missing(points: Iterable[InstrumentationPoint]) -> None:
    """Logs what is lost without these points: one line a loss, once in a process."""
    missing: dict[str, list[str]] = {}
    for point in points:
        missing.setdefault(point.without_it, []).append(point.path)
    for without_it, paths in missing.items():
        if without_it not in _reported:
            _reported.add(without_it)
            version = getattr(sys.modules.get("torch"), "__version__", "unknown")
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            log.warning("torch %s lacks or changed %s%s: %s", version, paths[0], more, without_it)


def _has_parameters(attribute: Any, names: tuple[str, ...]) -> bool:
    if not names:
        return True  # what is built in has no signature to ask for
    try:
        return set(names) <= set(inspect.signature(attribute).parameters)
    except (TypeError, ValueError):
        return False
