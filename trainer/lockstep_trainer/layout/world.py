"""One rank of a job: its identity and device, and how it joins the process group."""

import copy
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # torch.distributed offers them, untyped
    Backend,
    HashStore,
    PrefixStore,
    Store,
)
from torch.distributed import rpc
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """One rank among ``size``; ``attempt`` counts the restarts of the job.

    Attributes:
        store: key-value store that all ranks share; None before they have joined.

    Raises:
        ValueError: rank and size do not fit.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    attempt: int = 0
    store: Store | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(
                f"RANK {self.rank} is outside WORLD_SIZE {self.size}; start the ranks by "
                "`lockstep train` or torchrun and leave both unset"
            )

    @property
    def device(self) -> torch.device:
        """The GPU of this rank, or the CPU where there is none."""
        if torch.cuda.is_available():
            return torch.device("cuda", self.local_rank)
        return torch.device("cpu")


def world_from(environment: Mapping[str, str] = os.environ) -> World:
    """This rank by torchrun's environment variables; a world of one without them.

    Raises:
        ValueError: a variable is not valid, or two of them contradict each other.
    """
    names = {
        "rank": "RANK",
        "size": "WORLD_SIZE",
        "local_rank": "LOCAL_RANK",
        "attempt": "TORCHELASTIC_RESTART_COUNT",
    }
    numbers = {}
    for field, name in names.items():
        text = environment.get(name)
        if text is not None and not text.isdigit():
            raise ValueError(
                f"{name}={text!r} is not a rank or count; torchrun sets it, leave it out"
            )
        if text is not None:
            numbers[field] = int(text)
    world = World(**numbers, store=None)
    _check_consistent(world, environment)
    return world


def _check_consistent(world: World, environment: Mapping[str, str]) -> None:
    """Refuses RANK and WORLD_SIZE that contradict ROLE_RANK and ROLE_WORLD_SIZE of torchrun.

    Otherwise the ranks would wait for a missing rank until the timeout.
    """
    for name, value in (("RANK", world.rank), ("WORLD_SIZE", world.size)):
        role_value = environment.get(f"ROLE_{name}")
        if role_value is not None and role_value != str(value):
            raise ValueError(
                f"{name}={value} and ROLE_{name}={role_value} do not agree; start the ranks by "
                "`lockstep train` or torchrun, and leave both as they set them"
            )


@contextmanager
def process_group(world: World, *, timeout_seconds: float, threads: int) -> Iterator[World]:
    """Joins the process group of all ranks: NCCL with GPUs, else gloo.

    A collective that waits longer than ``timeout_seconds`` raises, so that no rank outlives its
    peers. After an error the group is not destroyed: that would wait for ranks that are gone.
    """
    torch.set_num_threads(threads)
    timeout = timedelta(seconds=timeout_seconds)
    store = _rendezvous(world, timeout)
    on_gpu = world.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(world.device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=timeout,
        rank=world.rank,
        world_size=world.size,
        store=store,
    )
    yield replace(world, store=store)
    # The model has to be freed before the group: a DDP reducer that is the group's last owner ends
    # gloo's threads while it holds the GIL, and one of them may wait for the GIL.
    gc.collect()
    dist.barrier()  # gloo may abort a rank that destroys the group after a peer has left
    api: Any = rpc.api
    if api._is_current_rpc_agent_set():  # noqa: SLF001  # torch offers no other way
        rpc.shutdown()  # waits for all ranks, which would see its pipes break
    dist.destroy_process_group()


def _rendezvous(world: World, timeout: timedelta) -> Store:
    """The store through which the ranks find each other.

    torchrun gives all attempts of a job one store, which still holds the addresses of dead ranks;
    so each attempt uses keys with its own prefix.
    """
    # A single rank needs no port, which could be in use.
    if world.size == 1:
        return HashStore()
    store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=timeout))
    return PrefixStore(f"attempt-{world.attempt}", store)


def subgroup_options(device: torch.device) -> Backend.Options:
    """Options for a group of some ranks, with the timeout of the group of all ranks.

    Without them a collective of such a group waits for torch's default of 30 minutes.
    """
    default_group = dist.group.WORLD
    assert default_group is not None
    options = default_group._get_backend(device).options  # noqa: SLF001  # torch offers no other way
    return copy.deepcopy(options) if device.type == "cuda" else options
