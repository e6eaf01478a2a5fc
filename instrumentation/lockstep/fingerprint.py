"""Fingerprints of parameters and gradients, by which data-parallel replicas are compared.

Every so many steps, before the optimizer's step, the bits of a few parameters and of their
gradients are added up as whole numbers: exact, the same in any order, and changed by any one bit.
Which parameters, and which elements of them, goes by the step's number, so that in time all are
seen. On a GPU the sums are copied aside and read when they are there, in a later step.

What goes wrong in one replica before gradients are averaged reaches all of them alike and is not
seen here; memory or arithmetic that fails after it is.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lockstep.disabled import Disabled
from lockstep.guard import guarded

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TENSORS = 8  # parameters in one fingerprint
_ELEMENTS = 4096  # of each of them
_MASK = (1 << 64) - 1


class Fingerprints:
    """Takes fingerprints of what the optimizers of a model are about to change.

    Args:
        every: steps from one to the next.
        shards_known: whether the rank's coordinates tell which shard of a DTensor it holds; where
            they do not, shards are left out, for replicas could not be told from shards.
    """

    def __init__(self, monitor: Disabled, *, every: int = 100, shards_known: bool = False) -> None:
        self._monitor, self._every, self._shards_known = monitor, every, shards_known
        self._step = -1
        self._sums: list[torch.Tensor] = []
        self._copied: Any = None  # an event of torch.cuda, which has no types
        self._layouts: dict[int, int] = {}

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes part in the steps of an optimizer; holds neither it nor its parameters."""
        optimizer.register_step_pre_hook(self._before_step)

    def fail(self, error: Exception) -> None:
        """An error of ours is the monitor's."""
        self._monitor.fail(error)

    @guarded
    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        step = self._monitor.next_step
        if self._sums and step != self._step:
            self._tell()
        is_free = not self._sums or step == self._step
        if step % self._every == 0 and step and is_free:
            self._step = step
            self._take(optimizer)

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._look_at_layout(id(optimizer), sum(one.numel() for one in parameters))
        number = self._step // self._every
        first = number * _TENSORS % max(1, len(parameters))
        chosen = list(islice((*parameters[first:], *parameters[:first]), _TENSORS))
        with torch.no_grad():
            of_parameters = self._sum(chosen, number)
            of_gradients = self._sum((one.grad for one in chosen), number)
            if of_parameters is None:
                return
            if of_gradients is None:
                of_gradients = torch.zeros_like(of_parameters)
            self._copy_aside(torch.stack((of_parameters, of_gradients)))

    def _sum(self, tensors: Iterable[torch.Tensor | None], number: int) -> torch.Tensor | None:
        """Sum of bits and number of values that are not finite, (2,) int64; None of no tensors."""
        local = [
            one.to_local() if isinstance(one, DTensor) else one
            for one in tensors
            if one is not None and (self._shards_known or not isinstance(one, DTensor))
        ]
        sums = [_figures_of(one, number) for one in local if _is_plain(one, like=local[0])]
        return torch.stack(sums).sum(dim=0) if sums else None

    def _copy_aside(self, sums: torch.Tensor) -> None:
        if sums.is_cuda:
            aside = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            self._sums.append(aside.copy_(sums, non_blocking=True))
            event: Any = torch.cuda.Event
            self._copied = event()
            self._copied.record()
        else:
            self._sums.append(sums)

    def _tell(self) -> None:
        """Hands over what was taken in an earlier step, once it is there."""
        if self._copied is not None and not self._copied.query():
            return
        parameters, gradients = torch.stack(self._sums).sum(dim=0).tolist()
        self._monitor.tell_fingerprint(self._step, parameters[0] & _MASK, gradients[0] & _MASK)
        self._monitor.tell_nonfinite(parameters[1] + gradients[1])
        self._sums, self._copied = [], None

    def _look_at_layout(self, who: int, num_elements: int) -> None:
        if self._layouts.setdefault(who, num_elements) != num_elements:
            self._layouts[who] = num_elements
            self._monitor.tell_shape()


def _is_plain(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether its bits can be added up with those of another."""
    return (
        tensor.layout == torch.strided
        and tensor.element_size() in _WHOLE
        and tensor.device == like.device
    )


def _figures_of(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """Sum of the bits of some of a tensor's elements, and how many are not finite; (2,) int64."""
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().flatten()
    stride = max(1, flat.numel() // _ELEMENTS)
    sample = flat[number % stride :: stride]
    bits = sample.view(_WHOLE[sample.element_size()]).sum(dtype=torch.int64)
    return torch.stack((bits, sample.isfinite().logical_not().sum()))


def watch_replicas(
    monitor: Disabled, model: torch.nn.Module, *, shards_known: bool
) -> Fingerprints | None:
    """What takes fingerprints of a model that has replicas; None where nothing says that it has."""
    sharded = shards_known and any(isinstance(one, DTensor) for one in model.parameters())
    if not (sharded or isinstance(model, DistributedDataParallel)):
        return None
    return Fingerprints(monitor, shards_known=shards_known)
