"""The layout of a job: how many ranks stand on each axis, and where one rank stands."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lockstep_trainer.world import options_like_all

AXES = ("pp", "dp", "fsdp", "ep", "tp")
_DATA_AXES = ("dp", "fsdp", "ep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of the mesh axes. Neighbours on tp have neighbouring ranks, those on pp the farthest.

    Attributes:
        dp: copies of the model, their gradients averaged.
        fsdp: ranks among which the parameters of one copy are sharded; dp x fsdp is HSDP.
        pp: stages of the pipeline.
        tp: ranks that share every matrix of a layer.
        ep: ranks that share the experts, and see different data.

    Raises:
        ValueError: the degrees do not multiply to the world size; the text names the flag.
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
            raise ValueError(f"{_spelled(self.degrees, self.world_size)}; {self._remedy(product)}")

    def _remedy(self, product: int) -> str:
        start = f"start {product} ranks"
        for axis in sorted(AXES, key=lambda axis: self.degrees[axis] == 1):
            others = product // self.degrees[axis]
            if self.world_size % others == 0:
                return f"give --{axis} {self.world_size // others} or {start}"
        return start

    @classmethod
    def fill(cls, world_size: int, axis: str, degrees: dict[str, int | None]) -> "Layout":
        """The layout of a world: axes left out are 1, but ``axis`` takes what the others leave.

        Raises:
            ValueError: the others leave no whole number, or all together are not the world.
        """
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
        """Degree by name of the axes in use; dp where a rank is alone."""
        used = {axis: degree for axis, degree in self.degrees.items() if degree > 1}
        return used or {"dp": 1}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Place of a rank by name of the axes in use."""
        place = self._place(rank)
        return {axis: place[axis] for axis in self.axes}

    def _place(self, rank: int) -> dict[str, int]:
        place = {}
        for axis, degree in reversed(self.degrees.items()):
            rank, place[axis] = divmod(rank, degree)
        return place

    @property
    def data_ranks(self) -> int:
        """How many different shares of a step's samples there are."""
        return math.prod(self.degrees[axis] for axis in _DATA_AXES)

    def data_rank(self, rank: int) -> int:
        """Which of the shares a rank sees; ranks that differ in pp and tp alone see the same."""
        place, share = self._place(rank), 0
        for axis in _DATA_AXES:
            share = share * self.degrees[axis] + place[axis]
        return share

    def leads(self, rank: int) -> bool:
        """Whether a rank is the first of those that see the same samples: it alone counts them."""
        place = self._place(rank)
        return place["pp"] == place["tp"] == 0

    def device_mesh(self, device: torch.device, axes: Sequence[str] = AXES) -> DeviceMesh:
        """The mesh of the process group, which must be joined; axes in use and those named."""
        kept = [axis for axis in AXES if axis in axes or self.degrees[axis] > 1]
        some = [axis for axis in kept if self.degrees[axis] < self.world_size]
        return init_device_mesh(
            device.type,
            tuple(self.degrees[axis] for axis in kept),
            mesh_dim_names=tuple(kept),
            backend_override={axis: options_like_all(device) for axis in some},
        )


def _spelled(degrees: dict[str, int], world_size: int) -> str:
    product = math.prod(degrees.values())
    names = " x ".join(f"--{axis} {degree}" for axis, degree in degrees.items())
    return f"{names} makes {product} ranks and the world has {world_size}"
