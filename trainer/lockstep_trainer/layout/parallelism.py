"""How a run is parallelised: strategy, degrees, micro-batches, precision and memory."""

from dataclasses import dataclass

import click

from lockstep_cli.options import FiniteRange
from lockstep_trainer.flags import POSITIVE, SIZE, flag

SCHEDULES = ("gpipe", "1f1b", "interleaved")
DTYPES = ("float32", "bfloat16")
_STAGES_PER_RANK_INTERLEAVED = 2


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How ranks split the work of one step, and how one rank splits its part over time.

    Raises:
        ValueError: two fields do not fit together; the text names the flag to change.
    """

    strategy: str = flag(
        "ddp",
        click.STRING,
        "Parallelism strategy: ddp, fsdp2, pp, tp, ep, hybrid, which combines pp, dp, fsdp and tp, "
        "or asynchronous: local-sgd or parameter-server.",
    )
    dp: int | None = flag(
        None, POSITIVE, "Data-parallel replicas of the model; default: what the other axes leave."
    )
    fsdp: int | None = flag(
        None, POSITIVE, "Ranks that shard the parameters of one replica; default: 1."
    )
    pp: int | None = flag(None, POSITIVE, "Pipeline-parallel ranks; default: 1.")
    tp: int | None = flag(
        None, POSITIVE, "Tensor-parallel ranks; a divisor of --heads; default: 1."
    )
    ep: int | None = flag(
        None, POSITIVE, "Expert-parallel ranks; a divisor of --experts; default: 1."
    )
    schedule: str = flag(
        "1f1b", click.Choice(SCHEDULES), "Order of the micro-batches in the pipeline."
    )
    micro_batches: int = flag(
        4, SIZE, "Micro-batches that the pipeline splits --batch into; a divisor."
    )
    accumulate: int = flag(
        1, SIZE, "Batches whose gradients are accumulated before an optimizer step."
    )
    round_steps: int = flag(
        16, POSITIVE, "With local-sgd, steps of a rank from one round of all to the next."
    )
    outer_learning_rate: float = flag(
        1.0, FiniteRange(0, min_open=True), "With local-sgd, of a round's mean change; DiLoCo: 0.7."
    )
    outer_momentum: float = flag(
        0.0, FiniteRange(0, 1, max_open=True), "With local-sgd, Nesterov's; DiLoCo: 0.9."
    )
    keep_gathered: bool = flag(
        False, click.BOOL, "With fsdp2, keep gathered parameters from the forward to the backward."
    )
    dtype: str = flag(
        "float32",
        click.Choice(DTYPES),
        "Precision of the computation; weights and sums stay float32.",
    )
    recompute: bool = flag(False, click.BOOL, "Save memory: recompute each block in the backward.")
    compile: bool = flag(False, click.BOOL, "Compile each block; needs a C++ compiler.")

    @property
    def stages_per_rank(self) -> int:
        """Pipeline stages that one rank holds."""
        return _STAGES_PER_RANK_INTERLEAVED if self.schedule == "interleaved" else 1

    @property
    def degrees(self) -> dict[str, int | None]:
        """Degree by mesh axis; None where the user left it out."""
        return {axis: getattr(self, axis) for axis in ("dp", "fsdp", "pp", "tp", "ep")}
