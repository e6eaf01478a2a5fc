"""The layout of a job: the degree of each mesh axis, and the coordinates of each rank."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from lockstep_trainer.layout.world import subgroup_options

AXES = ("pp", "dp", "fsdp", "ep", "tp")
_DATA_AXES = ("dp", "fsdp", "ep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of the mesh axes. tp varies fastest with the rank, pp slowest.

    tp communicates most and pp least, so tp peers should be on one node.

    Attributes:
        dp: replicas of the model; their gradients are averaged.
        fsdp: ranks that shard the parameters of one replica; dp x fsdp is HSDP.
        pp: ranks of the pipeline.
        tp: ranks that shard every matrix of a layer.
        ep: ranks that divide the experts and see different data.

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
        """The layout of a world. Missing axes are 1; a missing ``axis`` gets the remaining ranks.

        Raises:
            ValueError: the product of the degrees is not the world size.
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
