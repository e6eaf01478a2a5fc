"""The ranks of a job as one of them sees it: who it is, its device, and joining the others."""

import copy
import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # torch.distributed offers them, untyped
    Backend,
    HashStore,
    PrefixStore,
    Store,
)
from torch.distributed.rendezvous import rendezvous


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """One rank among ``size``; ``attempt`` counts how often the job was started again.

    Attributes:
        store: keys and values that all ranks share; None before they have joined.

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
    """This rank by what torchrun told it; a world of one when nothing did.

    Raises:
        ValueError: a variable has a value that cannot be.
    """
    names = {
        "rank": "RANK",
        "size": "WORLD_SIZE",
        "local_rank": "LOCAL_RANK",
        "attempt": "TORCHELASTIC_RESTART_COUNT",
    }
    told = {}
    for field, name in names.items():
        text = environment.get(name)
        if text is not None and not text.isdigit():
            raise ValueError(f"{name}={text!r} is no rank or count; torchrun sets it, leave it out")
        if text is not None:
            told[field] = int(text)
    world = World(**told, store=None)
    _check_agreed(world, environment)
    return world


def _check_agreed(world: World, environment: Mapping[str, str]) -> None:
    """Refuses what differs from the second place where torchrun tells the same.

    A rank too many or a size too large would else be waited for until the time limit.
    """
    for name, value in (("RANK", world.rank), ("WORLD_SIZE", world.size)):
        told = environment.get(f"ROLE_{name}")
        if told is not None and told != str(value):
            raise ValueError(
                f"{name}={value} and ROLE_{name}={told} do not agree; start the ranks by "
                "`lockstep train` or torchrun, and leave both as they set them"
            )


@contextmanager
def joined(world: World, *, timeout_seconds: float, threads: int) -> Iterator[World]:
    """Joins the process group of all ranks: NCCL with GPUs, else gloo.

    A collective that waits longer than ``timeout_seconds`` raises, so no rank outlives its peers.
    After an error the group is left as it is: to tear it down would wait for ranks that are gone.
    """
    torch.set_num_threads(threads)
    limit = timedelta(seconds=timeout_seconds)
    store = _meet(world, limit)
    on_gpu = world.device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(world.device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=limit,
        rank=world.rank,
        world_size=world.size,
        store=store,
    )
    yield replace(world, store=store)
    # The model goes before the group: a DDP reducer that is the group's last owner ends gloo's
    # threads while it holds the GIL, and one of them may wait for that.
    gc.collect()
    dist.barrier()  # gloo may abort a rank that tears down while a peer has already gone
    dist.destroy_process_group()


def _meet(world: World, limit: timedelta) -> Store:
    """The store by which the ranks find each other.

    torchrun gives all attempts of a job one store, in which the addresses of ranks that are dead
    still stand; so each attempt has its own part of it.
    """
    if world.size == 1:
        return HashStore()
    store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=limit))
    return PrefixStore(f"attempt-{world.attempt}", store)


def options_like_all(device: torch.device) -> Backend.Options:
    """Options for a group of some ranks, with the time limit of the group of all.

    Without them torch lets such a group wait for half an hour.
    """
    everyone = dist.group.WORLD
    assert everyone is not None
    of_all = everyone._get_backend(device).options  # noqa: SLF001  # torch offers no other way
    return copy.deepcopy(of_all) if device.type == "cuda" else of_all
