"""A rank leaves only when gloo's threads hold no tensor any more, for torch would abort it."""

import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore  # torch.distributed offers it, untyped

from lockstep.attach import wait_for_gloo


def _ten_gathers(group: dist.ProcessGroup) -> list[dist.Work]:
    return [
        group.allgather([[torch.empty(1 << 20)]], [torch.ones(1 << 20)])  # a few ms each
        for _ in range(10)
    ]


def test_a_destroyed_group_that_something_refers_to_is_waited_for_too() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    works = _ten_gathers(group)
    dist.destroy_process_group()
    wait_for_gloo(timeout_seconds=60.0)
    assert all(work.is_completed() for work in works)


def test_a_process_without_a_group_waits_for_nobody() -> None:
    began = time.monotonic()
    wait_for_gloo(timeout_seconds=60.0)
    assert time.monotonic() - began < 30
