"""``lockstep.attach``: one call that makes the monitor and hangs it on model and optimizer."""

import atexit
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.disabled import Disabled
from lockstep.identity import identity_from
from lockstep.monitor import Monitor
from lockstep_records.jobs import find_root, page_path
from lockstep_records.layout import DEFAULT_ROWS
from lockstep_records.page_writer import NoPageError, PageWriter

if TYPE_CHECKING:
    import torch

log = logging.getLogger("lockstep")


def disabled() -> Disabled:
    """A monitor that records nothing and has the same methods."""
    return Disabled()


def attach(
    model: "torch.nn.Module | None" = None,
    optimizer: "torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None" = None,
    *,
    mesh: Mapping[str, int] | None = None,
    root: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    rows: int = DEFAULT_ROWS,
) -> Disabled:
    """A monitor for this rank, hung on its model and optimizers.

    Never raises: where no page can be had, it says why once and gives back the disabled monitor.

    Args:
        model: a DDP model or a plain module; None when the loop marks its phases itself.
        optimizer: one optimizer or several.
        mesh: coordinates of the rank by axis (dp, fsdp, pp, tp, cp, ep).
        root: folder of all jobs, on a tmpfs; LOCKSTEP_DIR or /dev/shm/lockstep by default.
        environment: where RANK, WORLD_SIZE, LOCKSTEP_JOB_ID and the like are read;
            LOCKSTEP=off turns everything off.
        rows: steps that the page's ring keeps.
    """
    if environment.get("LOCKSTEP", "on") == "off":
        return Disabled()
    try:
        identity = identity_from(environment, mesh)
        path = page_path(
            root or find_root(environment), identity.job_id, identity.attempt, identity.rank
        )
        monitor = Monitor(PageWriter(path, identity, rows))
    except (NoPageError, ValueError) as error:
        log.warning("the monitor is off, training goes on: %s", error)
        return Disabled()
    _hang_on(monitor, model, optimizer)
    atexit.register(_at_exit, monitor)
    return monitor


def _hang_on(
    monitor: Monitor,
    model: "torch.nn.Module | None",
    optimizer: "torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None",
) -> None:
    if model is None:
        return
    from lockstep.fingerprint import (  # noqa: PLC0415  # torch is loaded only with a model
        watch_replicas,
    )
    from lockstep.hooks import StepHooks  # noqa: PLC0415  # torch is loaded only with a model

    hooks = StepHooks(monitor, model)
    if optimizer is None:
        return
    replicas = watch_replicas(monitor, model, shards_known=monitor.has_mesh)
    for one in optimizer if isinstance(optimizer, Iterable) else (optimizer,):
        hooks.watch_optimizer(one)
        if replicas is not None:
            replicas.watch(one)


def _at_exit(monitor: Monitor) -> None:
    """Says done for a loop that did not, and failed where an exception ended the process."""
    monitor.close(failed=getattr(sys, "last_value", None) is not None)
