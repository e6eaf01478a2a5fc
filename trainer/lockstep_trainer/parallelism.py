"""What a user may choose about sharing the work: strategy, degrees, batches, precision, memory."""

from dataclasses import dataclass, field

import click

from lockstep_trainer.flags import POSITIVE, SIZE, flag

SCHEDULES = ("gpipe", "1f1b", "interleaved")
DTYPES = ("float32", "bfloat16")
_STAGES_PER_RANK_INTERLEAVED = 2


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How one step's work is shared among ranks, and cut in time on one of them.

    Raises:
        ValueError: two fields do not fit together; the text names the flag to change.
    """

    strategy: str = field(
        default="ddp",
        metadata=flag(
            click.STRING,
            "How the work is shared among the ranks: ddp, fsdp2, pp, tp, "
            "ep, or hybrid for pp, dp, fsdp and tp together.",
        ),
    )
    dp: int | None = field(
        default=None,
        metadata=flag(POSITIVE, "Copies of the model; left out = all that the other axes leave."),
    )
    fsdp: int | None = field(
        default=None, metadata=flag(POSITIVE, "Ranks that shard one copy's parameters.")
    )
    pp: int | None = field(default=None, metadata=flag(POSITIVE, "Stages of the pipeline."))
    tp: int | None = field(
        default=None, metadata=flag(POSITIVE, "Ranks that share every layer; divides --heads.")
    )
    ep: int | None = field(
        default=None, metadata=flag(POSITIVE, "Ranks that share the experts; divides --experts.")
    )
    schedule: str = field(
        default="1f1b",
        metadata=flag(click.Choice(SCHEDULES), "Order of the micro-batches in the pipeline."),
    )
    micro_batches: int = field(
        default=4,
        metadata=flag(SIZE, "Micro-batches that the pipeline cuts --batch into; divides it."),
    )
    accumulate: int = field(
        default=1, metadata=flag(SIZE, "Batches whose gradients are added up for one step.")
    )
    keep_gathered: bool = field(
        default=False,
        metadata=flag(
            click.BOOL, "Keep gathered parameters from the forward to the backward in fsdp2."
        ),
    )
    dtype: str = field(
        default="float32",
        metadata=flag(
            click.Choice(DTYPES), "Numbers to compute in; weights and sums stay float32."
        ),
    )
    recompute: bool = field(
        default=False,
        metadata=flag(click.BOOL, "Save memory: compute each block again in the backward."),
    )
    compile: bool = field(
        default=False, metadata=flag(click.BOOL, "Compile each block; needs a C++ compiler.")
    )

    @property
    def stages_per_rank(self) -> int:
        """Pieces of the pipeline that one rank holds."""
        return _STAGES_PER_RANK_INTERLEAVED if self.schedule == "interleaved" else 1

    @property
    def degrees(self) -> dict[str, int | None]:
        """Degree by axis, None where it was left out."""
        return {axis: getattr(self, axis) for axis in ("dp", "fsdp", "pp", "tp", "ep")}
