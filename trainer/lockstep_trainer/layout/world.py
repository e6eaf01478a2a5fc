"""One rank of a job: its identity and device, and how it joins the process group."""

import copy
import gc
import math
import os
from collections.abc import Iterator, Mapping, Sequence
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
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

AXES = ("pp", "dp", "fsdp", "ep", "tp")
_DATA_AXES = ("dp", "fsdp", "ep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of the mesh axes. tp varies fastest with the rank, pp slowest.

    tp communicates most and pp least, so tp peers should be on one node. Degrees that do not
    multiply to the world size are a ValueError that names the flag.

    Attributes:
        dp: replicas of the model; their gradients are averaged.
        fsdp: ranks that shard the parameters of one replica; dp x fsdp is HSDP.
        pp, tp: ranks of the pipeline, and that shard every matrix of a layer.
        ep: ranks that divide the experts and see different data.
    """

    world_size: int
    dp: int = 1
    fsdp: int = 1
    pp: int = 1
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        product = math.prod(self.degrees.values())
        if product != self.world_size:
            raise ValueError(
                f"{_product_text(self.degrees, self.world_size)}; {self._remedy(product)}"
            )

    def _remedy(self, product: int) -> str:
        start = f"start {product} ranks"
        # Axes above 1 first: the user has chosen those, so one of them is most likely the mistake.
        for axis in sorted(AXES, key=lambda axis: self.degrees[axis] == 1):
            others = product // self.degrees[axis]
            if self.world_size % others == 0:
                return f"give --{axis} {self.world_size // others} or {start}"
        return start

    @classmethod
    def fill(cls, world_size: int, axis: str, degrees: dict[str, int | None]) -> "Layout":
        """The layout of a world: missing axes 1, ``axis`` the remaining ranks; or ValueError."""
        given = {name: degree for name, degree in degrees.items() if degree is not None}
        if axis not in given:
            others = math.prod(given.values())
            given[axis] = max(1, world_size // others)
        return cls(world_size=world_size, **given)

    @property
    def degrees(self) -> dict[str, int]:
        """Degree by axis name, slowest axis first."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def axes(self) -> dict[str, int]:
        """Degree by name of the axes above 1; dp in a world of one rank."""
        used = {axis: degree for axis, degree in self.degrees.items() if degree > 1}
        return used or {"dp": 1}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinates of a rank on the axes above 1."""
        position = self._position(rank)
        return {axis: position[axis] for axis in self.axes}

    def _position(self, rank: int) -> dict[str, int]:
        position = {}
        # Mixed-radix digits of the rank, last axis first.
        for axis, degree in reversed(self.degrees.items()):
            rank, position[axis] = divmod(rank, degree)
        return position

    @property
    def data_ranks(self) -> int:
        """Number of parts that a step's samples are split into."""
        return math.prod(self.degrees[axis] for axis in _DATA_AXES)

    def data_rank(self, rank: int) -> int:
        """Index of the part that a rank sees; ranks that differ only in pp and tp see the same."""
        position, part = self._position(rank), 0
        for axis in _DATA_AXES:
            part = part * self.degrees[axis] + position[axis]
        return part

    def device_mesh(self, device: torch.device, axes: Sequence[str] = AXES) -> DeviceMesh:
        """The mesh over the joined process group, with ``axes`` and the axes above 1."""
        used = [axis for axis in AXES if axis in axes or self.degrees[axis] > 1]
        # An axis of all ranks uses the default group, which has its options already.
        partial = [axis for axis in used if self.degrees[axis] < self.world_size]
        return init_device_mesh(
            device.type,
            tuple(self.degrees[axis] for axis in used),
            mesh_dim_names=tuple(used),
            backend_override={axis: subgroup_options(device) for axis in partial},
        )


def _product_text(degrees: dict[str, int], world_size: int) -> str:
    product = math.prod(degrees.values())
    names = " x ".join(f"--{axis} {degree}" for axis, degree in degrees.items())
    return f"{names} makes {product} ranks and the world has {world_size}"


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """One rank among ``size`` in an attempt, with the store that all share once they joined."""

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
    """This rank by torchrun's environment, a world of one without it; or ValueError."""
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
