"""Instruments the stages and the schedule of one pipeline."""

import logging
from typing import Any

from lockstep.monitor.live import LiveMonitor
from lockstep.patches.install import install, install_on
from lockstep.patches.pipeline import CHUNKS, wrap_chunk, wrap_schedule_step, wrap_transfers
from lockstep.patches.points import report_missing
from lockstep.patches.table import STAGE_METHODS

log = logging.getLogger("lockstep")


def watch_schedule(monitor: LiveMonitor, schedule: Any) -> None:
    """Reports to a monitor what a schedule of ``torch.distributed.pipelining`` does."""
    stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    if not all(hasattr(stage, "forward_one_chunk") for stage in stages):
        log.warning(
            "schedule %s is none of torch.distributed.pipelining; its stages are not seen",
            type(schedule).__name__,
        )
        return
    install("pipeline")
    for stage in stages:
        for point in STAGE_METHODS:
            method = point.attribute
            if not hasattr(stage, method):
                report_missing([point])
            elif method in CHUNKS:
                install_on(stage, method, wrap_chunk(monitor.enter_code, method, stage.stage_index))
            else:
                install_on(stage, method, wrap_transfers(method, stage.stage_index))
    install_on(schedule, "step", wrap_schedule_step(monitor.enter_code))
