"""Everything a user may change about a run: one value, and the flags that are made from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import click

from lockstep_records.options import FiniteRange
from lockstep_trainer.flags import (
    NOT_NEGATIVE,
    POSITIVE,
    SIZE,
    arguments_of,
    flag,
    flag_name,
    flags_of,
)
from lockstep_trainer.parallelism import Sharing

SLOW_PHASES = ("loader", "forward", "backward", "optimizer")
_PATH: "click.ParamType[Any]" = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(Sharing):
    """One run. Every field is a flag of the same name.

    Raises:
        ValueError: two fields do not fit together; the text names the flag to change.
    """

    steps: int = field(
        default=300,
        metadata=flag(POSITIVE, "Optimizer steps of the whole run, resumed ones included."),
    )
    batch: int = field(
        default=4,
        metadata=flag(
            POSITIVE, "Samples of a data rank in one forward; a step has --accumulate of them."
        ),
    )
    data: Path | None = field(
        default=None,
        metadata=flag(
            _PATH,
            "Folder of text files or of token shards; left out = the Python standard library.",
        ),
    )
    prefetch: int = field(
        default=2,
        metadata=flag(click.IntRange(0, 1024), "Batches made ahead in a thread; 0 = none."),
    )
    sequence: int = field(default=128, metadata=flag(POSITIVE, "Bytes of text per sample."))
    layers: int = field(default=4, metadata=flag(SIZE, "Transformer blocks."))
    width: int = field(
        default=128,
        metadata=flag(SIZE, "Size of the vector of one byte; a multiple of --heads."),
    )
    heads: int = field(default=4, metadata=flag(SIZE, "Attention heads per block."))
    experts: int = field(
        default=0,
        metadata=flag(
            click.IntRange(0, 1024), "Experts per block, two chosen for a byte; 0 = a dense model."
        ),
    )
    learning_rate: float = field(
        default=3e-3,
        metadata=flag(FiniteRange(0, min_open=True), "Peak of the learning rate of AdamW."),
    )
    warmup: int = field(
        default=20,
        metadata=flag(
            NOT_NEGATIVE, "Steps until the learning rate peaks; then a cosine; 0 = no warm-up."
        ),
    )
    clip: float = field(
        default=1.0,
        metadata=flag(FiniteRange(0), "Largest norm of the gradient; 0 = no clipping."),
    )
    seed: int = field(
        default=0,
        metadata=flag(click.IntRange(0, 2**32 - 1), "Seed of the weights and of the order."),
    )
    eval_every: int = field(
        default=100,
        metadata=flag(NOT_NEGATIVE, "Steps between two evaluations; 0 = only after the last step."),
    )
    eval_windows: int = field(
        default=256, metadata=flag(POSITIVE, "Samples of an evaluation, at least.")
    )
    checkpoint_every: int = field(
        default=100,
        metadata=flag(NOT_NEGATIVE, "Steps between two checkpoints; 0 = only after the last step."),
    )
    checkpoint_dir: Path | None = field(
        default=None,
        metadata=flag(_PATH, "Folder of the checkpoints; left out = none is written."),
    )
    checkpoint_keep: int = field(
        default=3, metadata=flag(POSITIVE, "Newest checkpoints that are kept.")
    )
    checkpoint_async: bool = field(
        default=False,
        metadata=flag(
            click.BOOL, "Write checkpoints in the background; a step waits for the copy alone."
        ),
    )
    resume: bool = field(
        default=False,
        metadata=flag(click.BOOL, "Go on from the newest valid checkpoint in --checkpoint-dir."),
    )
    threads: int = field(default=1, metadata=flag(click.IntRange(1, 1024), "CPU threads per rank."))
    timeout: float = field(
        default=60.0,
        metadata=flag(
            FiniteRange(0, 86_400, min_open=True),
            "Seconds that a rank waits for the others in a collective before it ends.",
        ),
    )
    grace: float = field(
        default=25.0,
        metadata=flag(
            FiniteRange(0, 86_400, min_open=True),
            "Seconds from SIGTERM until a rank that has not saved and left is ended.",
        ),
    )
    stop_check_every: int = field(
        default=5,
        metadata=flag(POSITIVE, "Steps between two looks whether any rank was told to stop."),
    )
    log_every: int = field(
        default=10, metadata=flag(NOT_NEGATIVE, "Steps between two progress lines; 0 = none.")
    )
    peak_flops: float | None = field(
        default=None,
        metadata=flag(
            FiniteRange(0, min_open=True),
            "FLOP/s that a rank's device can do at most, to tell MFU by; left out = not told.",
        ),
    )
    summary: Path | None = field(
        default=None, metadata=flag(_PATH, "File for the result as JSON; left out = none.")
    )
    slow_rank: int | None = field(
        default=None,
        metadata=flag(NOT_NEGATIVE, "Rank that is really made slow; left out = none."),
    )
    slow_ms: float = field(
        default=100.0,
        metadata=flag(
            FiniteRange(0, 3_600_000), "Milliseconds by which --slow-rank is late a step."
        ),
    )
    slow_from: int = field(default=1, metadata=flag(POSITIVE, "First slow step."))
    slow_until: int | None = field(
        default=None,
        metadata=flag(POSITIVE, "First step that is fast again; left out = slow to the end."),
    )
    slow_phase: str = field(
        default="backward",
        metadata=flag(click.Choice(SLOW_PHASES), "Where the delay happens in the step."),
    )
    nan_at: int | None = field(
        default=None,
        metadata=flag(
            POSITIVE, "Step whose loss is made not a number, on every rank; left out = none."
        ),
    )
    fault: tuple[str, ...] = field(
        default=(),
        metadata=flag(
            click.STRING,
            "What goes wrong, as KIND:rank=R,step=S,...; may be given again. Kinds, and their "
            "values, stand in docs/faults.md.",
        ),
    )
    faults: Path | None = field(
        default=None,
        metadata=flag(_PATH, "TOML file with tables [[fault]] of what goes wrong."),
    )
    fault_seed: int = field(
        default=0,
        metadata=flag(NOT_NEGATIVE, "Seed of the ranks and steps that a fault leaves to chance."),
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{flag_name(one)} {value} must be a finite number")
        if self.width % self.heads:
            raise ValueError(
                f"--width {self.width} is no multiple of --heads {self.heads}; "
                f"{self.width - self.width % self.heads or self.heads} would be"
            )
        if self.experts == 1:
            raise ValueError("--experts 1 is one too few to choose two; give 2 or more, or 0")
        if self.resume and self.checkpoint_dir is None:
            raise ValueError("--resume needs --checkpoint-dir, the folder to go on from")
        if self.slow_until is not None and self.slow_until <= self.slow_from:
            raise ValueError(
                f"--slow-until {self.slow_until} must be above --slow-from {self.slow_from}"
            )

    @property
    def model_shape(self) -> dict[str, int]:
        """What a checkpoint must share with a run that goes on from it, by field."""
        return {
            "layers": self.layers,
            "width": self.width,
            "heads": self.heads,
            "sequence": self.sequence,
            "experts": self.experts,
        }

    @property
    def samples_per_step(self) -> int:
        """Samples of one data rank in one step."""
        return self.batch * self.accumulate

    def due(self, step: int, every: int) -> bool:
        """Whether what happens ``every`` so many steps, and after the last one, happens now."""
        return step == self.steps or (every > 0 and step % every == 0)

    def as_arguments(self) -> list[str]:
        """The flags that make this value again, defaults left out."""
        return arguments_of(self)


def trainer_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a click command one option per field of ``TrainConfig``."""
    return flags_of(TrainConfig)(command)
