"""Learns DDP's gradient buckets: how many, how large, and which gradient completes the first one.

DDP settles its buckets after the first step, and its logger tells in which order gradients came.
A single hook is hung, on the parameter that completes the first bucket: the moment it is ready is
the rank's arrival at the step's first collective. Hooks on all parameters would tell the order too,
but torch goes on calling into Python for each gradient that ever had one.
"""

from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel

_LEARN_AT = 4  # buckets are rebuilt after the first step and told of with the third; one to be safe
_GIVE_UP_AT = 10  # the logger tells of each step up to there, then of one in a hundred


def _asked(model: DistributedDataParallel) -> Mapping[str, Any]:
    ask: Any = model._get_ddp_logging_data  # noqa: SLF001  # DDP has no public way to ask
    told: Mapping[str, Any] = ask()
    return told


def _numbers(text: object) -> list[int]:
    return [int(number) for number in str(text).split(",") if number.strip().isdigit()]


def _completing(
    model: DistributedDataParallel, order: list[int], size_bytes: int
) -> torch.Tensor | None:
    """The parameter whose gradient, in that order, fills so many bytes."""
    parameters: list[torch.Tensor] = [
        one
        for one in model._module_parameters  # noqa: SLF001  # those that DDP's logger counts
        if one.requires_grad
    ]
    reached = 0
    for place in order:
        if place < len(parameters):
            reached += parameters[place].numel() * parameters[place].element_size()
            if reached >= size_bytes:
                return parameters[place]
    return None


class BucketWatch:
    """Counts and sizes of the gradient buckets of one DDP model.

    Args:
        model: whose buckets.
        arriving: asked once, when all is learnt; what it gives is called with the parameter that
            completes the first bucket, whenever its gradient is ready.

    Attributes:
        model: a weak reference to it.
        arrives: whether the moment is told; not where a parameter may be left unused.
        settled: whether ``step_done`` has learnt what there is to learn.
        told: number of buckets, their bytes together, and ranks that share them.
    """

    def __init__(
        self,
        model: "ref[DistributedDataParallel]",
        arriving: Callable[[], Callable[[torch.Tensor], None]],
    ) -> None:
        self.model, self._arriving = model, arriving
        self.arrives = self.settled = False
        self._steps = 0
        self.told: tuple[int, int, int | None] = (1, 0, None)
        self._read_buckets()

    def _read_buckets(self) -> torch.Tensor | None:
        """Takes in what DDP tells; gives the parameter that completes the first bucket."""
        model = self.model()
        if model is None:
            return None
        told = _asked(model)
        sizes = _numbers(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes"))
        self.told = (max(1, len(sizes)), sum(sizes), model.process_group.size())
        order = _numbers(told.get("prev_iteration_grad_ready_order_indices"))
        return _completing(model, order, sizes[0]) if sizes else None

    def synchronises(self) -> bool:
        """Whether the backward that runs now ends in a synchronisation; not under no_sync."""
        model = self.model()
        return model is not None and bool(model.require_backward_grad_sync)

    def step_done(self) -> None:
        """Called after each synchronised backward; does something in a few early steps only."""
        self._steps += 1
        if self._steps < _LEARN_AT or self.settled:
            return
        completing, model = self._read_buckets(), self.model()
        self.settled = completing is not None or self._steps >= _GIVE_UP_AT
        if completing is not None and model is not None:
            register: Any = completing.register_post_accumulate_grad_hook
            register(self._arriving())
            self.arrives = not model.find_unused_parameters
