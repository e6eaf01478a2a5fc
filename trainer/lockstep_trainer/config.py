"""Everything a user may change about a run: one value, and the flags that are made from it."""

import math
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

import click

SLOW_PHASES = ("loader", "forward", "backward", "optimizer")
_MAX_COUNT = 10**9
_SIZE = click.IntRange(1, 65_536)
_POSITIVE = click.IntRange(1, _MAX_COUNT)
_NOT_NEGATIVE = click.IntRange(0, _MAX_COUNT)
_PATH: "click.ParamType[Any]" = click.Path(path_type=Path)


def _flag(kind: "click.ParamType[Any]", text: str) -> dict[str, Any]:
    """Makes a field a flag too: what the flag takes, and its help."""
    return {"kind": kind, "help": text}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One run. Every field is a flag of the same name.

    Raises:
        ValueError: two fields do not fit together; the text names the flag to change.
    """

    steps: int = field(
        default=300,
        metadata=_flag(_POSITIVE, "Optimizer steps of the whole run, resumed ones included."),
    )
    batch: int = field(default=4, metadata=_flag(_POSITIVE, "Samples per rank and step."))
    sequence: int = field(default=128, metadata=_flag(_POSITIVE, "Bytes of text per sample."))
    layers: int = field(default=4, metadata=_flag(_SIZE, "Transformer blocks."))
    width: int = field(
        default=128,
        metadata=_flag(_SIZE, "Size of the vector of one byte; a multiple of --heads."),
    )
    heads: int = field(default=4, metadata=_flag(_SIZE, "Attention heads per block."))
    learning_rate: float = field(
        default=3e-3,
        metadata=_flag(click.FloatRange(0, min_open=True), "Peak of the learning rate of AdamW."),
    )
    warmup: int = field(
        default=20,
        metadata=_flag(
            _NOT_NEGATIVE, "Steps until the learning rate peaks; then a cosine; 0 = no warm-up."
        ),
    )
    clip: float = field(
        default=1.0,
        metadata=_flag(click.FloatRange(0), "Largest norm of the gradient; 0 = no clipping."),
    )
    seed: int = field(
        default=0,
        metadata=_flag(click.IntRange(0, 2**32 - 1), "Seed of the weights and of the order."),
    )
    eval_every: int = field(
        default=100,
        metadata=_flag(
            _NOT_NEGATIVE, "Steps between two evaluations; 0 = only after the last step."
        ),
    )
    checkpoint_every: int = field(
        default=100,
        metadata=_flag(
            _NOT_NEGATIVE, "Steps between two checkpoints; 0 = only after the last step."
        ),
    )
    checkpoint_dir: Path | None = field(
        default=None,
        metadata=_flag(_PATH, "Folder of the checkpoints; left out = none is written."),
    )
    checkpoint_keep: int = field(
        default=3, metadata=_flag(_POSITIVE, "Newest checkpoints that are kept.")
    )
    resume: bool = field(
        default=False,
        metadata=_flag(click.BOOL, "Go on from the newest valid checkpoint in --checkpoint-dir."),
    )
    strategy: str = field(
        default="ddp", metadata=_flag(click.STRING, "How the work is shared among the ranks.")
    )
    dp: int | None = field(
        default=None,
        metadata=_flag(_POSITIVE, "Data-parallel ranks; left out = all that the other axes leave."),
    )
    threads: int = field(
        default=1, metadata=_flag(click.IntRange(1, 1024), "CPU threads per rank.")
    )
    timeout: float = field(
        default=60.0,
        metadata=_flag(
            click.FloatRange(0, 86_400, min_open=True),
            "Seconds that a rank waits for the others in a collective before it ends.",
        ),
    )
    log_every: int = field(
        default=10, metadata=_flag(_NOT_NEGATIVE, "Steps between two progress lines; 0 = none.")
    )
    summary: Path | None = field(
        default=None, metadata=_flag(_PATH, "File for the result as JSON; left out = none.")
    )
    slow_rank: int | None = field(
        default=None,
        metadata=_flag(_NOT_NEGATIVE, "Rank that is really made slow; left out = none."),
    )
    slow_ms: float = field(
        default=100.0,
        metadata=_flag(
            click.FloatRange(0, 3_600_000), "Milliseconds by which --slow-rank is late a step."
        ),
    )
    slow_from: int = field(default=1, metadata=_flag(_POSITIVE, "First slow step."))
    slow_until: int | None = field(
        default=None,
        metadata=_flag(_POSITIVE, "First step that is fast again; left out = slow to the end."),
    )
    slow_phase: str = field(
        default="backward",
        metadata=_flag(click.Choice(SLOW_PHASES), "Where the delay happens in the step."),
    )
    nan_at: int | None = field(
        default=None,
        metadata=_flag(
            _POSITIVE, "Step whose loss is made not a number, on every rank; left out = none."
        ),
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
        }

    def due(self, step: int, every: int) -> bool:
        """Whether what happens ``every`` so many steps, and after the last one, happens now."""
        return step == self.steps or (every > 0 and step % every == 0)

    def as_arguments(self) -> list[str]:
        """The flags that make this value again, defaults left out."""
        arguments = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value != one.default:
                arguments += [flag_name(one)] if value is True else [flag_name(one), str(value)]
        return arguments


def flag_name(one: "Field[Any]") -> str:
    """The flag of a field, such as ``--learning-rate``."""
    return "--" + one.name.replace("_", "-")


def trainer_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a click command one option per field of ``TrainConfig``."""
    for one in reversed(fields(TrainConfig)):
        assert one.default is not MISSING
        option = click.option(
            flag_name(one),
            type=one.metadata["kind"],
            is_flag=one.default is False,
            default=one.default,
            show_default=one.default is not False,
            help=one.metadata["help"],
        )
        command = option(command)
    return command
