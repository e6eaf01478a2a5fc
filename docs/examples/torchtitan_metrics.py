"""torchtitan: a metrics processor that attaches to what the Trainer has built.

torchrun --nproc-per-node 8 docs/examples/torchtitan_metrics.py --module llama3 --config NAME

Its Trainer asks the processor once a step whether to log; that is where a step begins.
"""

from typing import Any

from torchtitan.components.metrics import MetricsProcessor
from torchtitan.train import main

import lockstep


class LockstepMetrics(MetricsProcessor):
    """torchtitan's own processor, and a monitor of Lockstep beside it."""

    monitor: lockstep.Monitor | None = None

    def should_log(self, step: int) -> bool:
        """Ends the step before; the first call comes when model and optimizers are built."""
        if self.monitor is None:
            self.monitor = lockstep.attach(self.model_parts, [*self.optimizers], mesh=self.mesh())
        else:
            self.monitor.step(step=step - 1)
        return bool(super().should_log(step))

    def mesh(self) -> dict[str, int]:
        """The coordinates of this rank, by Lockstep's names of the axes."""
        dims = self.parallel_dims
        axes = {"dp": "dp_replicate", "fsdp": "fsdp", "tp": "tp", "pp": "pp", "cp": "cp"}
        meshes = {axis: dims.get_optional_mesh(name) for axis, name in axes.items()}
        return {axis: mesh.get_local_rank() for axis, mesh in meshes.items() if mesh is not None}

    def close(self) -> None:
        """Ends the last step, and the monitor with it."""
        if self.monitor is not None:
            self.monitor.step()
            self.monitor.close()
        super().close()


def build_metrics(config: Any, **options: Any) -> LockstepMetrics:
    """The processor of a configuration; in the place of torchtitan's own."""
    return LockstepMetrics(config, **options)


if __name__ == "__main__":
    MetricsProcessor.Config.build = build_metrics
    main()
