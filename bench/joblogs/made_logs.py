"""Makes logs of jobs with their truth: launchers, zones, frameworks, words and endings, by seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

_EPOCH = 1_735_000_000.0


@dataclass
class Truth:
    """What is true of a made log; ``ranks`` are named, and of no other any may be."""

    outcome: str
    cause: str | None = None
    blame: str = "nobody"
    ranks: tuple[int, ...] = ()
    median_seconds: float | None = None
    after_seconds: float | None = None


@dataclass
class MadeLog:
    """A log while it is written.

    Attributes:
        framework: whose words its steps are in; ``took`` is about what they take, in seconds.
        now: time of the next line, in seconds since 1970.
        label: prefix of a rank's lines, as the launcher writes it.
    """

    draw: random.Random
    world: int
    zone_hours: float
    label: Callable[[int], str]
    names_ranks: bool
    framework: str
    took: float
    now: float = _EPOCH
    lines: list[str] = field(default_factory=list)
    truth: Truth = field(default_factory=lambda: Truth("unknown", blame="unknown"))

    def local(self, form: str = "%Y-%m-%d %H:%M:%S", seconds: float | None = None) -> str:
        """A local time, as a node in this log's zone prints it."""
        zone = timezone(timedelta(hours=self.zone_hours))
        return datetime.fromtimestamp(self.now if seconds is None else seconds, zone).strftime(form)

    def add(self, text: str, rank: int | None = None) -> None:
        """Adds a line, of a rank or of nobody."""
        self.lines.append(text if rank is None else self.label(rank) + text)

    def mllog(self, key: str, metadata: str = "{}", rank: int = 0) -> None:
        """Adds a line of MLPerf's log, whose times are of 1970 in UTC."""
        self.add(
            f':::MLLOG {{"namespace": "", "time_ms": {int(self.now * 1000)}, "event_type": '
            f'"POINT_IN_TIME", "key": "{key}", "value": null, "metadata": {metadata}}}',
            rank,
        )

    def traceback(self, rank: int, error: str, file: str = "train.py") -> None:
        """Adds the traceback of a rank."""
        for line in (
            "Traceback (most recent call last):",
            f'  File "/app/{file}", line 88, in <module>',
            "    main()",
            error,
        ):
            self.add(line, rank)  # fmt: skip


def _labels(kind: str, world: int) -> tuple[Callable[[int], str], bool]:
    """How a launcher labels lines, and whether labels name global ranks."""
    if kind == "srun":
        return (lambda rank: f"{rank}: "), True
    if kind == "torchrun":
        return (lambda rank: f"[rank{rank}]: "), True
    if kind == "tee":  # local ranks, of several nodes
        return (lambda rank: f"[default{rank % 8}]:"), world <= 8  # noqa: PLR2004  # one node
    return (lambda _: ""), False


# --- how frameworks print a step


def _megatron(log: MadeLog, step: int, took: float) -> None:
    stamp = f"[{log.local()}] " if log.draw.random() < _HALF else ""
    log.add(f" {stamp}iteration {step:8d}/  500000 | consumed samples: {step * 64} | elapsed time "
            f"per iteration (ms): {took * 1e3:.1f} | lm loss: 2.1E+00 |")  # fmt: skip


def _deepspeed_s(log: MadeLog, step: int, took: float) -> None:
    log.add(f" iteration {step:8d}/  500000 | consumed samples: {step * 64} | elapsed time per "
            f"iteration (s): {took:.4f} | learning rate: 1E-04 | lm loss: 2.1E+00 |")  # fmt: skip


def _nemo(log: MadeLog, step: int, took: float) -> None:
    log.add(f"Training epoch 0, iteration {step}/4999 | lr: 1e-4 | global_step: {step} | "
            f"reduced_train_loss: 1.9 | train_step_timing in s: {took:.4f}")  # fmt: skip


def _primus(log: MadeLog, step: int, took: float) -> None:
    log.add(f"[{log.local('%Y%m%d %H:%M:%S')}][rank-{log.world - 1}/{log.world}][INFO ]  iteration"
            f" {step}/ 5000 | elapsed time per iteration (ms): {took * 1e3:.1f}/{took * 1e3:.1f} |"
            " lm loss: 1.0E+01 |")  # fmt: skip


def _maxtext(log: MadeLog, step: int, took: float) -> None:
    log.add(f"completed step: {step}, seconds: {took:.4f}, TFLOP/s/device: 100.1, Tokens/s/device: "
            "9000, total_weights: 65536, loss: 10.871")  # fmt: skip


def _pax(log: MadeLog, step: int, took: float) -> None:
    log.add(f"[PAX STATUS]: step_i: {step}, training loss: 3.2, train steps/sec: {1 / took:.6f}")


def _tensorflow(log: MadeLog, step: int, took: float) -> None:
    log.add(f"INFO:tensorflow:loss = 7.51, step = {step} ({took:.4f} sec)")


def _losses_with_stamps(log: MadeLog, step: int, took: float) -> None:
    del took
    log.add(f"{log.local('%Y-%m-%d %H:%M:%S.%f')[:-3]} | INFO | step: {step} loss: 3.21 lr: 1e-4")


def _mlperf(log: MadeLog, step: int, took: float) -> None:
    del took
    log.mllog("train_loss", f'{{"samples_count": {step * 16}, "lr": 0.0002}}')


_HALF = 0.5
FRAMEWORKS = {
    "megatron": _megatron, "megatron-deepspeed": _deepspeed_s, "nemo": _nemo, "primus": _primus,
    "maxtext": _maxtext, "pax": _pax, "tensorflow": _tensorflow, "stamps": _losses_with_stamps,
    "mlperf": _mlperf,
}  # fmt: skip


def train(log: MadeLog, first: int, num_steps: int) -> None:
    """Adds steps, each a little longer or shorter than ``took``."""
    durations = [log.took * (1 + 0.02 * (step % 5 - 2)) for step in range(num_steps)]
    for step, seconds in enumerate(durations, first):
        log.now += seconds
        FRAMEWORKS[log.framework](log, step, seconds)
    log.truth.median_seconds = sorted(durations)[num_steps // 2]


def begin(seed: int) -> MadeLog:
    """A log of a launcher, with lines before the training."""
    draw = random.Random(seed)
    world = draw.choice([4, 8, 16, 64])
    label, names = _labels(draw.choice(["srun", "torchrun", "tee", "bare"]), world)
    log = MadeLog(draw, world, draw.choice([0, 1, 2, -7, 5.5, 9]), label, names,
                  list(FRAMEWORKS)[seed % len(FRAMEWORKS)], draw.uniform(0.3, 20.0),
                  now=_EPOCH + draw.randrange(10_000_000))  # fmt: skip
    log.add("+ srun --ntasks=1 bash -c 'hostname && sync'")
    log.add("Clearing cache on gpu-0")
    log.add(f"+ srun -l --ntasks={world} ./run.sh")
    log.add(f"world_size: {world}")
    log.add(f"STARTING TIMING RUN AT {log.local('%Y-%m-%d %I:%M:%S %p')}")
    log.now += draw.uniform(5, 100)
    return log
