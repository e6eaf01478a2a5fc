"""Fingerprints of parameters and gradients, by which data-parallel replicas are compared.

Every so many steps, before the optimizer's step, the bits of a few parameters and of their
gradients are added up as whole numbers: exact, the same in any order, and changed by any one bit.
Which parameters, and which elements of them, goes by the step's number: each parameter comes in its
turn, with the elements that follow those of its last turn, so that in time all are seen. On a GPU
the sums are copied aside and read when they are there, in a later step.

What goes wrong in one replica before gradients are averaged reaches all of them alike and is not
seen here; memory or arithmetic that fails after it is.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from lockstep.guard import guarded
from lockstep.monitor.noop import NoopMonitor
from lockstep.recorder.recorder import PhaseHook

# Kinds of numbers whose bits are added up, and as what; of others torch can do no sums.
_WHOLE = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_DENSE = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
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

    def __init__(
        self, monitor: NoopMonitor, *, every: int = 100, shards_known: bool = False
    ) -> None:
        self._monitor, self._every, self._shards_known = monitor, every, shards_known
        self._step = -1
        self._sums: list[torch.Tensor] = []
        self._copied: Any = None  # an event of torch.cuda, which has no types
        self._layouts: dict[int, int] = {}
        self._phase_hooks: list[PhaseHook] = []

    def watch(self, before: PhaseHook) -> None:
        """Takes part in what marks an optimizer's steps; holds not the optimizer."""
        before.also = self._before_step
        self._phase_hooks.append(before)

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
        for phase_hook in self._phase_hooks:  # this step's other optimizers are still to come
            phase_hook.quiet_from = step + 1
            phase_hook.quiet_until = 0 if self._sums else step - step % self._every + self._every

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._look_at_layout(id(optimizer), sum(one.numel() for one in parameters))
        if not parameters:
            return
        first = self._step // self._every * _TENSORS
        places = range(first, first + min(_TENSORS, len(parameters)))
        turns = [divmod(place, len(parameters)) for place in places]
        with torch.no_grad():
            of_parameters = self._sum((parameters[at], turn) for turn, at in turns)
            of_gradients = self._sum((parameters[at].grad, turn) for turn, at in turns)
            if of_parameters is None:
                return
            if of_gradients is None:
                of_gradients = torch.zeros_like(of_parameters)
            self._copy_aside(torch.stack((of_parameters, of_gradients)))

    def _sum(self, tensors: Iterable[tuple[torch.Tensor | None, int]]) -> torch.Tensor | None:
        """Sum of bits and number of values that are not finite, (2,) int64; None of no tensors.

        Args:
            tensors: each with the number of times that it was chosen before.
        """
        local = [
            (one.to_local() if isinstance(one, DTensor) else one, turn)
            for one, turn in tensors
            if one is not None and (self._shards_known or not isinstance(one, DTensor))
        ]
        parts = [_part_of(one, turn) for one, turn in local if _is_plain(one, like=local[0][0])]
        kinds = {part.dtype for part in parts}
        sums = [_figures_of([part for part in parts if part.dtype == kind]) for kind in kinds]
        return sum(sums[1:], sums[0]) if sums else None

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
        tensor.layout == torch.strided and tensor.dtype in _WHOLE and tensor.device == like.device
    )


def _part_of(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    """Elements of a tensor that lie side by side, (at most 4096,); the next ones in each turn."""
    total = tensor.numel()
    first = turn * _ELEMENTS % (-(-total // _ELEMENTS) * _ELEMENTS) if total else 0
    count = min(_ELEMENTS, total - first)
    if type(tensor) in _PLAIN and any(tensor.is_contiguous(memory_format=one) for one in _DENSE):
        return tensor.as_strided((count,), (1,), tensor.storage_offset() + first)
    return tensor.flatten()[first : first + count]


def _figures_of(parts: list[torch.Tensor]) -> torch.Tensor:
    """Sum of the bits of elements of one type, and how many are not finite; (2,) int64."""
    elements = torch.cat(parts)
    bits = elements.view(_WHOLE[elements.dtype]).sum(dtype=torch.int64)
    nonfinite = (elements - elements).count_nonzero()  # two calls, where isfinite makes six
    return torch.stack((bits, nonfinite))


def watch_replicas(
    monitor: NoopMonitor, models: Iterable[torch.nn.Module], *, shards_known: bool
) -> Fingerprints | None:
    """What takes fingerprints of models that have replicas; None where nothing says so."""
    copied = sharded = False
    for model in models:
        copied = copied or isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel)
        sharded = sharded or any(isinstance(one, DTensor) for one in model.parameters())
    if not (copied or (sharded and shards_known)):
        return None
    return Fingerprints(monitor, shards_known=shards_known)
