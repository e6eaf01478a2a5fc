"""In the loop: what a torch training loop imports.

import lockstep

monitor = lockstep.attach(model, optimizer)
for batch in monitor.prepare(loader):
    ...
    monitor.step(loss=loss, tokens=tokens)
monitor.close()
"""

from lockstep.attach import attach, disabled
from lockstep.checkpoints import Restoring, Saving
from lockstep.disabled import Disabled
from lockstep.monitor import Monitor

__all__ = ["Disabled", "Monitor", "Restoring", "Saving", "attach", "disabled"]
