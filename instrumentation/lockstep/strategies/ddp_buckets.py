"""Learns DDP's gradient buckets: number, sizes, and the gradient that completes the first one.

One hook is registered, on the parameter that completes the first bucket: the moment its gradient is
ready is the rank's arrival at the step's first collective.
"""

# Hooks on all parameters would tell the order of gradients too, but torch goes on calling into
# Python for each gradient that ever had one. DDP's logger tells it without a hook.

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel

from lockstep.patches.points import BUCKET_STATISTICS, report_missing

# DDP rebuilds its buckets after the first step and its logger has them from the third on; one more
# step to be safe.
_LEARN_AT_STEP = 4
# Up to this step the logger is brought up to date in each step, then in one of a hundred.
_GIVE_UP_AT_STEP = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketSizes:
    """Bytes of the gradient buckets of a model, reduced one by one among so many ranks."""

    count: int = 1
    size_bytes: int = 0
    ranks: int | None = None


def _statistics(model: DistributedDataParallel) -> Mapping[str, Any]:
    read: Callable[[], Mapping[str, Any]] | None = getattr(model, BUCKET_STATISTICS.attribute, None)
    if read is None:
        report_missing([BUCKET_STATISTICS])
        return {}
    return read()


def _integers(text: object) -> list[int]:
    return [int(number) for number in str(text).split(",") if number.strip().isdigit()]


def _sort_by_readiness(
    model: DistributedDataParallel, ready_order: list[int]
) -> list[torch.Tensor]:
    """The parameters in the order in which their gradients become ready."""
    # The logger's indices count DDP's own list, which leaves out what the model ignores.
    own_parameters: list[torch.Tensor] = getattr(model, "_module_parameters", [])
    parameters = [parameter for parameter in own_parameters if parameter.requires_grad]
    return [parameters[index] for index in ready_order if index < len(parameters)]


def _completing_parameter(in_order: list[torch.Tensor], size_bytes: int) -> torch.Tensor | None:
    """The parameter whose gradient, in that order, fills so many bytes."""
    filled_bytes = 0
    for parameter in in_order:
        filled_bytes += parameter.numel() * parameter.element_size()
        if filled_bytes >= size_bytes:
            return parameter
    return None


class BucketWatch:
    """Counts and sizes of the gradient buckets of one DDP model.

    Args:
        arrival_hook: called once, when the buckets are known; its result is called with the
            parameter that completes the first bucket, whenever its gradient is ready.

    Attributes:
        reports_arrival: whether that hook is registered and reliable; it is not where a parameter
            may be left unused.
        settled: whether ``end_step`` has learnt what there is to learn.
        sizes: the buckets as known now.
    """

    def __init__(
        self,
        model: "ref[DistributedDataParallel]",
        arrival_hook: Callable[[], Callable[[torch.Tensor], None]],
    ) -> None:
        self.model, self._arrival_hook = model, arrival_hook
        self.reports_arrival = self.settled = False
        self._steps = 0
        self._last_parameter: ref[torch.Tensor] | None = None
        self.sizes = BucketSizes()
        self._read_buckets()

    def _read_buckets(self) -> torch.Tensor | None:
        """Reads the sizes; returns the parameter that completes the first bucket, if known."""
        model = self.model()
        if model is None:
            return None
        statistics = _statistics(model)
        sizes = _integers(statistics.get("rebuilt_bucket_sizes") or statistics.get("bucket_sizes"))
        self.sizes = BucketSizes(
            count=max(1, len(sizes)), size_bytes=sum(sizes), ranks=model.process_group.size()
        )
        ready_order = _integers(statistics.get("prev_iteration_grad_ready_order_indices"))
        in_order = _sort_by_readiness(model, ready_order)
        self._last_parameter = ref(in_order[-1]) if in_order else None
        return _completing_parameter(in_order, sizes[0]) if sizes else None

    def watch_last_gradient(self, hook: Callable[[torch.Tensor], None]) -> bool:
        """Calls ``hook`` whenever the last gradient of a backward is ready; False if none known."""
        parameter: Any = None if self._last_parameter is None else self._last_parameter()
        if not self.reports_arrival or parameter is None:
            return False
        parameter.register_post_accumulate_grad_hook(hook)
        return True

    def synchronises(self) -> bool:
        """Whether the backward that runs now ends in a synchronisation; not under no_sync."""
        model = self.model()
        return model is not None and bool(model.require_backward_grad_sync)

    def end_step(self) -> None:
        """Called after each synchronised backward; does something in a few early steps only."""
        self._steps += 1
        if self._steps < _LEARN_AT_STEP or self.settled:
            return
        completing, model = self._read_buckets(), self.model()
        self.settled = completing is not None or self._steps >= _GIVE_UP_AT_STEP
        if completing is not None and model is not None:
            register: Any = completing.register_post_accumulate_grad_hook
            register(self._arrival_hook())
            # With unused parameters the gradient that completes a bucket may change or never come.
            self.reports_arrival = not model.find_unused_parameters
