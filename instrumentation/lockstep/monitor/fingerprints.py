"""Fingerprints of parameters and gradients, by which data-parallel replicas are compared.

Every so many steps, before the optimizer's step, the bits of a few parameters and of their
gradients are added up as integers: exact, the same in any order, and changed by any one bit. The
step's number selects the parameters and their elements: each parameter has its turn, with the
elements that follow those of its last turn, so that in time all are covered. On a GPU the sums are
copied within the stream and read in a later step.

An error in one replica before gradients are averaged reaches all of them alike and is not detected
here; memory or arithmetic that fails after it is.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from lockstep.guard import Parts, part_of
from lockstep.monitor.live import LiveMonitor
from lockstep.patches.layers import ddp_in
from lockstep.recorder.interface import PhaseHook

# Types whose bits are added up, and the integers they are read as; torch has no sums of others.
_INTEGERS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
_PLAIN = {torch.Tensor, torch.nn.Parameter}
_DENSE = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
_TENSORS = 8  # parameters in one fingerprint
_ELEMENTS = 4096  # of each of them
_MASK = (1 << 64) - 1  # a sum of int64 wraps; the page has it unsigned


class Fingerprints:
    """Takes fingerprints of what the optimizers of a model are about to change.

    Args:
        every: steps from one to the next.
        has_shard_coordinates: whether the rank's mesh says which shard of a DTensor it holds; where
            it does not, shards are left out, as replicas cannot be distinguished from shards.
    """

    def __init__(
        self, monitor: LiveMonitor, *, every: int = 100, has_shard_coordinates: bool = False
    ) -> None:
        self._monitor, self._every, self._has_shard_coordinates = (
            monitor,
            every,
            has_shard_coordinates,
        )
        self._step = -1
        self._sums: list[torch.Tensor] = []
        self._copied: Any = None  # an event of torch.cuda, which has no types
        self._num_elements: dict[int, int] = {}  # by id of the optimizer
        self._phase_hooks: list[PhaseHook] = []
        monitor.parts.call_when_off("fingerprints", self._stop)

    def watch(self, before: PhaseHook) -> None:
        """Is called by the hook before an optimizer's steps; does not hold the optimizer."""
        before.callback = self._take_if_due
        self._phase_hooks.append(before)

    @property
    def parts(self) -> Parts:
        """The parts of the monitor."""
        return self._monitor.parts

    def _stop(self) -> None:
        for phase_hook in self._phase_hooks:
            phase_hook.callback = None

    @part_of("fingerprints")
    def _take_if_due(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        step = self._monitor.next_step
        if self._sums and step != self._step:
            self._report()
        is_free = not self._sums or step == self._step
        if step % self._every == 0 and step and is_free:
            self._step = step
            self._take(optimizer)
        for phase_hook in self._phase_hooks:  # not in this step: its other optimizers still run
            phase_hook.quiet_from = step + 1
            phase_hook.quiet_until = 0 if self._sums else step - step % self._every + self._every

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        self._check_shape(id(optimizer), sum(tensor.numel() for tensor in parameters))
        if not parameters:
            return
        first = self._step // self._every * _TENSORS
        counters = range(first, first + min(_TENSORS, len(parameters)))
        turns = [divmod(counter, len(parameters)) for counter in counters]
        with torch.no_grad():
            parameter_sums = self._sum((parameters[index], turn) for turn, index in turns)
            gradient_sums = self._sum((parameters[index].grad, turn) for turn, index in turns)
            if parameter_sums is None:
                return
            if gradient_sums is None:
                gradient_sums = torch.zeros_like(parameter_sums)
            self._copy(torch.stack((parameter_sums, gradient_sums)))

    def _sum(self, tensors: Iterable[tuple[torch.Tensor | None, int]]) -> torch.Tensor | None:
        """Sum of bits and number of values not finite, int64 [2]; None without a tensor."""
        local = [
            (tensor.to_local() if isinstance(tensor, DTensor) else tensor, turn)
            for tensor, turn in tensors
            if tensor is not None
            and (self._has_shard_coordinates or not isinstance(tensor, DTensor))
        ]
        parts = [
            _select_elements(tensor, turn)
            for tensor, turn in local
            if _is_summable(tensor, like=local[0][0])
        ]
        dtypes = {part.dtype for part in parts}
        sums = [_sum_bits([part for part in parts if part.dtype == dtype]) for dtype in dtypes]
        return sum(sums[1:], sums[0]) if sums else None

    def _copy(self, sums: torch.Tensor) -> None:
        """Starts the copy of sums [2, 2] to the host; on the CPU there is none."""
        if sums.is_cuda:
            pinned = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True)
            self._sums.append(pinned.copy_(sums, non_blocking=True))
            event: Any = torch.cuda.Event
            self._copied = event()
            self._copied.record()
        else:
            self._sums.append(sums)

    def _report(self) -> None:
        """Reports the sums of an earlier step, once they are on the host."""
        if self._copied is not None and not self._copied.query():
            return
        parameters, gradients = torch.stack(self._sums).sum(dim=0).tolist()
        reports = self._monitor.reports
        reports.fingerprint(self._step, parameters[0] & _MASK, gradients[0] & _MASK)
        reports.nonfinite_parameters(parameters[1] + gradients[1])
        self._sums, self._copied = [], None

    def _check_shape(self, optimizer_id: int, num_elements: int) -> None:
        if self._num_elements.setdefault(optimizer_id, num_elements) != num_elements:
            self._num_elements[optimizer_id] = num_elements
            self._monitor.reports.shape_change()


def _is_summable(tensor: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether the bits of a tensor can be added up with those of another."""
    return (
        tensor.layout == torch.strided
        and tensor.dtype in _INTEGERS
        and tensor.device == like.device
    )


def _select_elements(tensor: torch.Tensor, turn: int) -> torch.Tensor:
    """Neighbouring elements of a tensor, [at most 4096]; the next ones in each turn."""
    total = tensor.numel()
    first = turn * _ELEMENTS % (-(-total // _ELEMENTS) * _ELEMENTS) if total else 0
    count = min(_ELEMENTS, total - first)
    if type(tensor) in _PLAIN and any(
        tensor.is_contiguous(memory_format=layout) for layout in _DENSE
    ):
        # A view on the storage: flatten() would copy a tensor in channels_last.
        return tensor.as_strided((count,), (1,), tensor.storage_offset() + first)
    return tensor.flatten()[first : first + count]


def _sum_bits(parts: list[torch.Tensor]) -> torch.Tensor:
    """Sum of the bits of elements of one type, and number of values not finite; int64 [2]."""
    elements = torch.cat(parts)
    bits = elements.view(_INTEGERS[elements.dtype]).sum(dtype=torch.int64)
    # x - x is 0 but for NaN and infinity: two calls of torch, where isfinite makes six.
    nonfinite = (elements - elements).count_nonzero()
    return torch.stack((bits, nonfinite))


def watch_replicas(
    monitor: LiveMonitor, models: Iterable[torch.nn.Module], *, has_shard_coordinates: bool
) -> Fingerprints | None:
    """Fingerprints of models that have replicas; None where nothing says that they have."""
    is_copied = is_sharded = False
    for model in models:
        is_copied = is_copied or ddp_in(model) is not None
        is_sharded = is_sharded or any(
            isinstance(parameter, DTensor) for parameter in model.parameters()
        )
    if not (is_copied or (is_sharded and has_shard_coordinates)):
        return None
    return Fingerprints(monitor, has_shard_coordinates=has_shard_coordinates)
