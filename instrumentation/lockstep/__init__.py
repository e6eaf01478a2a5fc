"""The library that a torch training loop imports: attach, monitors, checkpoints and JSON logs.

import lockstep

monitor = lockstep.attach(model, optimizer)
for batch in monitor.prepare(loader):
    ...
    monitor.step(loss=loss, tokens=tokens)
monitor.close()
"""

from lockstep.attach import attach, disabled
from lockstep.monitor.checkpoint_handles import Restoring, Saving
from lockstep.monitor.live import LiveMonitor
from lockstep.monitor.protocol import Monitor, NoopMonitor
from lockstep.telemetry.logs import json_logs

__all__ = [
    "LiveMonitor",
    "Monitor",
    "NoopMonitor",
    "Restoring",
    "Saving",
    "attach",
    "disabled",
    "json_logs",
]
