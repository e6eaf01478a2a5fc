"""Learns DDP's gradient buckets: how many, how large, and which gradient completes the first one.

DDP settles its buckets after the first step. In one later step every gradient is watched to learn
their order; then a single hook stays, on the parameter that completes the first bucket, for the
moment it is ready is the rank's arrival at the step's first collective.
"""

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch.nn.parallel import DistributedDataParallel

_LEARN_AT = 3  # buckets are rebuilt after the first step; one more to be safe


def _bucket_bytes(model: DistributedDataParallel) -> list[int]:
    """Sizes of the buckets as DDP's logger tells them, the first to be reduced first."""
    ask: Any = model._get_ddp_logging_data  # noqa: SLF001  # DDP has no public way to ask
    told = ask()
    text = told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip().isdigit()]


def _when_ready(parameter: torch.Tensor, tell: Callable[[torch.Tensor], None]) -> Any:
    register: Any = parameter.register_post_accumulate_grad_hook
    return register(tell)


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
        self._ready: list[torch.Tensor] = []
        self._learning: list[Any] = []
        self._sizes: list[int] = []
        self.told: tuple[int, int, int | None] = (1, 0, None)
        self._read_buckets()

    def _read_buckets(self) -> None:
        model = self.model()
        if model is not None:
            self._sizes = _bucket_bytes(model)
            self.told = (max(1, len(self._sizes)), sum(self._sizes), model.process_group.size())

    def synchronises(self) -> bool:
        """Whether the backward that runs now ends in a synchronisation; not under no_sync."""
        model = self.model()
        return model is not None and bool(model.require_backward_grad_sync)

    def step_done(self) -> None:
        """Called after each synchronised backward; does something in a few early steps only."""
        self._steps += 1
        if self._steps == _LEARN_AT:
            self._read_buckets()
            model = self.model()
            self._learning = [
                _when_ready(parameter, self._ready.append)
                for parameter in (model.parameters() if model is not None else ())
                if parameter.requires_grad
            ]
        elif self._learning:
            for handle in self._learning:
                handle.remove()
            self._learning, self.settled = [], True
            self._keep_one()

    def _keep_one(self) -> None:
        reached = 0
        for parameter in self._ready:
            reached += parameter.numel() * parameter.element_size()
            if self._sizes and reached >= self._sizes[0]:
                _when_ready(parameter, self._arriving())
                model = self.model()
                self.arrives = model is not None and not model.find_unused_parameters
                break
        self._ready.clear()
