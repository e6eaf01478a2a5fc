"""The model of every strategy, which computes the loss and gradients of a step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import _PipelineSchedule

import lockstep
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.optimizer import clip_gradients


class ParallelModel:
    """One rank's view of a model that all ranks run in parallel; here without a pipeline.

    Args:
        gpt: the module with the parameters.
        call: the module to call: a wrapper of the model, or None for the model itself.
        gradient_sync: context around forward and backward of one batch. Its argument says whether
            the batch is the step's last, with which gradients are averaged among the ranks.

    Attributes:
        parts: the modules this rank runs: the whole model, or its pipeline stages, first to last.
        module: this rank's parameters under their names in the whole model.
        forward_module: the module whose call is the forward; the monitor hooks it.
        stages: the ranks that hold the stages of this model; None without a pipeline.
        schedule: the pipeline schedule, for the monitor; None without a pipeline.
    """

    parts: Sequence[GPT]
    module: nn.Module
    forward_module: nn.Module
    stages: dist.ProcessGroup | None = None
    schedule: _PipelineSchedule | None = None

    def __init__(
        self,
        gpt: GPT,
        config: TrainConfig,
        *,
        call: nn.Module | None = None,
        gradient_sync: Callable[[bool], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self.parts, self.module, self.forward_module = (gpt,), gpt, call or gpt
        self._accumulate, self._gradient_sync = config.accumulate, gradient_sync
        self._bfloat16 = config.dtype == "bfloat16"

    def forward_backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Accumulates the gradients of a step, of x and y, a byte ahead: [samples, sequence].

        Returns the mean loss in nats, without a graph.
        """
        total = torch.zeros((), device=x.device)
        batches = list(zip(x.chunk(self._accumulate), y.chunk(self._accumulate), strict=True))
        for number, batch in enumerate(batches, start=1):
            with self._gradient_sync(number == len(batches)):
                with compute_in(x.device, bfloat16=self._bfloat16):
                    loss = self.forward_module(*batch) / len(batches)
                loss.backward()
            # Detached, or the graph of every batch would live until the end of the step.
            total += loss.detach()
        return total

    @torch.no_grad()
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss in nats of as many samples as a step has, without gradients."""
        batches = zip(x.chunk(self._accumulate), y.chunk(self._accumulate), strict=True)
        with compute_in(x.device, bfloat16=self._bfloat16):
            losses = [self.forward_module(*batch) for batch in batches]
        return torch.stack(losses).mean()

    def clip(self, max_norm: float) -> Tensor:
        """Clips gradients to a norm over the whole model; returns the norm before clipping."""
        return clip_gradients(self.module.parameters(), max_norm, self.stages)

    def exchange(self, step: int, monitor: lockstep.Monitor) -> int:
        """Exchanges parameters, where not all steps average gradients; the step of the job.

        The first call comes before the first step, on the parameters that the run begins with.
        """
        del monitor
        return step


def compute_in(device: torch.device, *, bfloat16: bool) -> AbstractContextManager[None]:
    """Autocast of matrix products to bfloat16 if asked for, else a context without effect."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16)


def compile_blocks(gpt: GPT, config: TrainConfig) -> None:
    """Compiles every block in place where the configuration asks for it."""
    # Block by block: all blocks have one shape, so torch compiles one graph and uses it for all.
    for block in gpt.blocks.values() if config.compile else ():
        block.compile()
