"""Drives torch's own DDP, FSDP2 and pipelines on the asynchronous device.

Their classes are torch's. What is replaced is what NCCL and CUDA would do below them: the
collectives they start, and in FSDP2 the module that gives streams and events. Numbers do not
travel between the ranks: only the moments at which their streams come.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import (
    _fsdp_collectives,
    _fsdp_init,
    _fsdp_param_group,
    _fsdp_state,
)
from torch.distributed.pipelining import schedules
from torch.nn.parallel import DistributedDataParallel

from async_device import cuda
from async_device.communicator import Communicator, Transfers, Work

_all_reduce = dist.all_reduce  # before it is replaced
_queue_callback: Any = torch.autograd.Variable._execution_engine.queue_callback  # noqa: SLF001  # as FSDP2 does


def reduce_over(model: DistributedDataParallel, communicator: Communicator) -> None:
    """Has DDP reduce its buckets as with NCCL: the stream waits at the end of the backward."""
    works: list[Work] = []

    def wait_for_all() -> None:
        # Where the reducer waits for the buckets' futures, which with NCCL blocks the stream only.
        for work in works:
            work.wait()
        works.clear()

    def start(_state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        works.append(communicator.collective(async_op=True))
        if bucket.is_last():
            _queue_callback(wait_for_all)
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    # Torch checks the annotation, and does not export the class for type checkers.
    start.__annotations__["bucket"] = getattr(dist, "GradBucket")  # noqa: B009  # as torch has it
    model.register_comm_hook(None, start)


class Collectives:
    """Functions of ``torch.distributed`` that FSDP2 and clipping call, as with NCCL.

    Args:
        communicator: of all ranks.
        late: seconds that the next collective takes longer.
    """

    def __init__(self, communicator: Communicator, late: Callable[[], float]) -> None:
        self._communicator, self._late = communicator, late

    def _start(self, async_op: bool) -> Work | None:
        work = self._communicator.collective(async_op=async_op, more_seconds=self._late())
        return work if async_op else None

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = None, group: Any = None, async_op: bool = False
    ) -> Work | None:
        """As torch's; the tensor stays as it is.

        Minimum and maximum are what tools ask for about the host; gloo answers them as ever.
        """
        if op in {dist.ReduceOp.MIN, dist.ReduceOp.MAX}:
            work: Any = _all_reduce(tensor, op, group, async_op)
            return work  # type: ignore[no-any-return]  # gloo's, for tools of the host
        return self._start(async_op)

    def all_gather(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any = None,
        async_op: bool = False,
    ) -> Work | None:
        """As torch's; each part becomes the own one."""
        del group
        output_tensor.view(-1, input_tensor.numel()).copy_(input_tensor.clone().view(1, -1))
        return self._start(async_op)

    def reduce_scatter(
        self,
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002  # torch's name
        op: Any = None,
        group: Any = None,
        async_op: bool = False,
    ) -> Work | None:
        """As torch's; the own part is the first."""
        del op, group
        output.copy_(input.view(-1)[: output.numel()].view_as(output))
        return self._start(async_op)


def replace_collectives(communicator: Communicator, late: Callable[[], float]) -> None:
    """Puts these functions in the place of torch's, before anything else wraps them."""
    collectives = Collectives(communicator, late)
    dist.all_reduce = collectives.all_reduce
    dist.all_gather_into_tensor = dist.all_gather_single = collectives.all_gather
    dist.reduce_scatter_tensor = dist.reduce_scatter_single = collectives.reduce_scatter


def give_streams_to_fsdp() -> None:
    """Has FSDP2 use the streams and events of the asynchronous device for tensors of the CPU."""
    for module in (_fsdp_collectives, _fsdp_init, _fsdp_param_group, _fsdp_state):
        setattr(module, "_get_device_handle", lambda *_: cuda)  # noqa: B010  # it is private


def replace_transfers(transfers: Transfers) -> None:
    """Has the schedules of pipelines send and receive as with NCCL."""

    def start(p2p_ops: Any, desc: str | None = None) -> list[Work]:
        del desc
        return transfers.batch(p2p_ops) if p2p_ops else []

    setattr(schedules, "_batch_p2p", start)  # noqa: B010  # it is private
