"""Configuration of a training run: one frozen value, and the command-line flags made from it."""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from lockstep_cli.options import DurationRange, FiniteRange, config_option
from lockstep_records.text.durations import format_duration

T = TypeVar("T")
_MAX_COUNT = 10**9
SIZE = click.IntRange(1, 65_536)
POSITIVE = click.IntRange(1, _MAX_COUNT)
NOT_NEGATIVE = click.IntRange(0, _MAX_COUNT)


def flag(default: T, kind: "click.ParamType[Any]", text: str) -> T:
    """A dataclass field that is a flag too: its default, click type and help text."""
    setting: Any = field(default=default, metadata={"kind": kind, "help": text})
    return cast("T", setting)


def flag_name(setting: "Field[Any]") -> str:
    """The flag of a field, such as ``--learning-rate``."""
    return "--" + setting.name.replace("_", "-")


def options_from_fields(config: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a click command one option per field of a dataclass, and --config."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(fields(config)):
            assert setting.default is not MISSING
            option = click.option(
                flag_name(setting),
                type=setting.metadata["kind"],
                is_flag=setting.default is False,
                default=_spelled(setting, setting.default),
                multiple=isinstance(setting.default, tuple),
                show_default=setting.default not in {False, "", ()},
                help=setting.metadata["help"],
            )
            command = option(command)
        return config_option(command)

    return decorate


def _spelled(setting: "Field[Any]", value: Any) -> Any:
    """A value as a user would write it, so that --help shows ``1m`` and not ``60.0``."""
    is_duration = isinstance(setting.metadata["kind"], DurationRange)
    return format_duration(value) if is_duration else value


def arguments_from(config: Any) -> list[str]:
    """The flags that make an equal value; fields at their defaults are left out."""
    arguments = []
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, tuple):
            arguments += [text for part in value for text in (flag_name(setting), str(part))]
        elif value != setting.default:
            arguments.append(flag_name(setting))
            if value is not True:
                arguments.append(str(_spelled(setting, value)))
    return arguments


SCHEDULES = ("gpipe", "1f1b", "interleaved")
DTYPES = ("float32", "bfloat16")
_STAGES_PER_RANK_INTERLEAVED = 2


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How ranks split a step, and one rank its part over time; a ValueError names the flag."""

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


_DAY_SECONDS = 86_400
_PATH: "click.ParamType[Any]" = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig(Parallelism):
    """One run, each field a flag of its name, durations in seconds; a ValueError names the flag."""

    steps: int = flag(300, POSITIVE, "Optimizer steps of the run, steps before a resume included.")
    batch: int = flag(
        4,
        POSITIVE,
        "Samples of one data rank in one forward; a step accumulates --accumulate of them.",
    )
    data: Path | None = flag(
        None,
        _PATH,
        "Folder of text files or of token shards; default: the Python standard library.",
    )
    prefetch: int = flag(
        2, click.IntRange(0, 1024), "Batches that a thread prepares in advance; 0 = no thread."
    )
    sequence: int = flag(128, POSITIVE, "Sequence length in bytes.")
    layers: int = flag(4, SIZE, "Transformer blocks.")
    width: int = flag(128, SIZE, "Embedding width; a multiple of --heads.")
    heads: int = flag(4, SIZE, "Attention heads per block.")
    experts: int = flag(
        0, click.IntRange(0, 1024), "Experts per block, two chosen for a byte; 0 = a dense model."
    )
    learning_rate: float = flag(3e-3, FiniteRange(0, min_open=True), "Peak learning rate of AdamW.")
    warmup: int = flag(
        20, NOT_NEGATIVE, "Steps of linear warm-up before the cosine decay; 0 = no warm-up."
    )
    clip: float = flag(1.0, FiniteRange(0), "Largest norm of the gradient; 0 = no clipping.")
    seed: int = flag(
        0, click.IntRange(0, 2**32 - 1), "Seed of the initial weights and of the sample order."
    )
    eval_every: int = flag(
        100, NOT_NEGATIVE, "Steps between two evaluations; 0 = only after the last step."
    )
    eval_windows: int = flag(256, POSITIVE, "Least number of samples in an evaluation.")
    checkpoint_every: int = flag(
        100, NOT_NEGATIVE, "Steps between two checkpoints; 0 = only after the last step."
    )
    checkpoint_dir: Path | None = flag(
        None, _PATH, "Folder of the checkpoints; default: no checkpoint is written."
    )
    checkpoint_keep: int = flag(3, POSITIVE, "Number of newest checkpoints to keep.")
    checkpoint_async: bool = flag(
        False, click.BOOL, "Write checkpoints in the background; a step waits only for the copy."
    )
    resume: bool = flag(
        False, click.BOOL, "Resume from the newest valid checkpoint in --checkpoint-dir."
    )
    threads: int = flag(1, click.IntRange(1, 1024), "CPU threads per rank.")
    timeout: float = flag(
        60.0,
        DurationRange(0.001, _DAY_SECONDS),
        "Longest wait of a rank in a collective before it ends with an error.",
    )
    grace: float = flag(
        25.0,
        DurationRange(0.001, _DAY_SECONDS),
        "Time after SIGTERM at which a rank that is still running is ended.",
    )
    stop_check_every: int = flag(
        5, POSITIVE, "Steps between two checks whether any rank was asked to stop by SIGTERM."
    )
    log_every: int = flag(10, NOT_NEGATIVE, "Steps between two progress lines; 0 = none.")
    peak_flops: float | None = flag(
        None,
        FiniteRange(0, min_open=True),
        "Peak FLOP/s of one rank's device, for the MFU; default: no MFU is reported.",
    )
    summary: Path | None = flag(None, _PATH, "File for the result as JSON; default: none.")
    fault: tuple[str, ...] = flag(
        (),
        click.STRING,
        "Fault to inject, as KIND:rank=R,step=S,...; repeatable. docs/faults.md lists kinds and "
        "values.",
    )
    fault_seed: int = flag(
        0, NOT_NEGATIVE, "Seed of the ranks and steps that a fault leaves to chance."
    )

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"--width {self.width} is not a multiple of --heads {self.heads}; "
                f"{self.width - self.width % self.heads or self.heads} would be"
            )
        if self.experts == 1:
            raise ValueError("--experts 1 is one too few to choose two; give 2 or more, or 0")
        if self.resume and self.checkpoint_dir is None:
            raise ValueError("--resume needs --checkpoint-dir, the folder to resume from")

    @property
    def model_shape(self) -> dict[str, int]:
        """Fields, by name, in which a checkpoint and a run that resumes from it must agree."""
        names = ("layers", "width", "heads", "sequence", "experts")
        return {name: getattr(self, name) for name in names}

    @property
    def samples_per_step(self) -> int:
        """Samples of one data rank in one optimizer step."""
        return self.batch * self.accumulate

    def due(self, step: int, every: int) -> bool:
        """Whether a periodic action is due: after each ``every`` steps, and after the last step."""
        return step == self.steps or (every > 0 and step % every == 0)

    def as_arguments(self) -> list[str]:
        """The flags that make an equal value; fields at their defaults are left out."""
        return arguments_from(self)


trainer_flags = options_from_fields(TrainConfig)
"""Gives a click command one option per field of ``TrainConfig``."""
