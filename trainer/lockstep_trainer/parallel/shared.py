"""What every strategy gives the loop: a model that computes losses and gradients of a step."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining.schedules import _PipelineSchedule

from lockstep_trainer.config import TrainConfig
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel.clip import clip_gradients


class SharedModel(Protocol):
    """A model shared among the ranks, as one of them holds it."""

    @property
    def parts(self) -> Sequence[GPT]:
        """What this rank runs: the whole, or its stages of a pipeline, first to last."""

    @property
    def module(self) -> nn.Module:
        """What this rank holds, its parameters under their names in the whole model."""

    @property
    def stages(self) -> dist.ProcessGroup | None:
        """The ranks that hold the stages of this model; None where a rank holds the whole."""

    @property
    def watched(self) -> nn.Module:
        """What a monitor hangs its hooks on: its call is the forward."""

    @property
    def schedule(self) -> _PipelineSchedule | None:
        """What runs the stages of a pipeline, for the monitor; None where there is none."""

    def forward_backward(self, x: Tensor, y: Tensor) -> Tensor:
        """Adds up the gradients of a step; gives the mean loss of the samples, without a graph.

        Args:
            x: all samples of this data rank in this step, (samples, sequence).
            y: x, one byte ahead.
        """

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss of as many samples as a step has, without gradients."""

    def clip(self, max_norm: float) -> Tensor:
        """Scales gradients down to a norm over the whole model; gives the norm before."""


class WholeModel:
    """A model whose every rank runs the whole forward and backward, on its own samples.

    Args:
        gpt: what holds the parameters.
        call: what is called: the model itself, or what wraps it.
        synced: entered around forward and backward of one batch; told whether it is the step's
            last, with which the gradients are to be averaged among the ranks.
    """

    def __init__(
        self,
        gpt: GPT,
        config: TrainConfig,
        *,
        call: nn.Module | None = None,
        synced: Callable[[bool], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self.parts, self.module, self.watched = (gpt,), gpt, call or gpt
        self.stages = self.schedule = None
        self._accumulate, self._synced = config.accumulate, synced
        self._bfloat16 = config.dtype == "bfloat16"

    def forward_backward(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``SharedModel``."""
        total = torch.zeros((), device=x.device)
        batches = list(zip(x.chunk(self._accumulate), y.chunk(self._accumulate), strict=True))
        for number, batch in enumerate(batches, start=1):
            with self._synced(number == len(batches)):
                with compute_in(x.device, bfloat16=self._bfloat16):
                    loss = self.watched(*batch) / len(batches)
                loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """See ``SharedModel``."""
        batches = zip(x.chunk(self._accumulate), y.chunk(self._accumulate), strict=True)
        with compute_in(x.device, bfloat16=self._bfloat16):
            losses = [self.watched(*batch) for batch in batches]
        return torch.stack(losses).mean()

    def clip(self, max_norm: float) -> Tensor:
        """See ``SharedModel``."""
        return clip_gradients(self.module.parameters(), max_norm)


def compute_in(device: torch.device, *, bfloat16: bool) -> AbstractContextManager[None]:
    """Autocast of products to bfloat16, or nothing."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16)


def compile_blocks(gpt: GPT, config: TrainConfig) -> None:
    """Compiles every block in place, if that is asked for."""
    for block in gpt.blocks.values() if config.compile else ():
        block.compile()
