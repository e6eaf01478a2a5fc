"""The layout of a job: how many ranks stand on each axis, and where one rank stands."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Degrees of the mesh axes, slowest axis first. A new axis is a field and a name in ``axes``.

    Raises:
        ValueError: the degrees do not multiply to the world size; the text names the flag.
    """

    world_size: int
    dp: int

    def __post_init__(self) -> None:
        if self.dp != self.world_size:
            raise ValueError(
                f"--dp {self.dp} makes {self.dp} ranks and the world has {self.world_size}; "
                f"give --dp {self.world_size}, leave it out, or start {self.dp} ranks"
            )

    @classmethod
    def fill(cls, world_size: int, dp: int | None) -> "Layout":
        """The layout of a world; an axis that was left out takes what the others leave."""
        return cls(world_size=world_size, dp=world_size if dp is None else dp)

    @property
    def axes(self) -> dict[str, int]:
        """Degree by axis name."""
        return {"dp": self.dp}

    def coordinates(self, rank: int) -> dict[str, int]:
        """Place of a rank by axis name."""
        place = {}
        for axis, degree in reversed(self.axes.items()):
            rank, place[axis] = divmod(rank, degree)
        return dict(reversed(place.items()))
