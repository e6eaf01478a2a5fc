"""All kinds of faults by name, and all but those of the network."""

import atexit
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lockstep_trainer.checkpoints.files import find_newest
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.faults import network
from lockstep_trainer.faults.kind import (
    Environment,
    Fault,
    InStep,
    Kind,
    Step,
    Target,
    Value,
    act_before_step,
    needs_checkpoints,
)
from lockstep_trainer.layout.world import Layout
from lockstep_trainer.model.gpt import Mixture

DELAY = Value(name="delay", low=0, high=3600, default=0.1, sort="duration")


@contextmanager
def _forward(fault: Fault, target: Target) -> Step:
    delay = _OneDelay(fault, target)

    def delay_forward(module: nn.Module, _inputs: object) -> None:
        if module.training:  # an evaluation in this step stays quick
            delay()

    with target.middle_block.register_forward_pre_hook(delay_forward):
        yield


@contextmanager
def _backward(fault: Fault, target: Target) -> Step:
    delay = _OneDelay(fault, target)
    with target.middle_block.register_full_backward_pre_hook(lambda *_: delay()):
        yield


@contextmanager
def _optimizer(fault: Fault, target: Target) -> Step:
    delay = _OneDelay(fault, target)
    with target.optimizer.register_step_pre_hook(lambda *_: delay()):
        yield


class _OneDelay:
    """Sleeps at the first call alone: a step has a forward for each of its micro-batches."""

    def __init__(self, fault: Fault, target: Target) -> None:
        self._seconds, self._sleep = fault.values["delay"], target.sleep
        self._is_over = False

    def __call__(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._sleep(self._seconds)


_STEP_EFFECTS: dict[str, InStep] = {
    "loader": act_before_step(lambda fault, target: target.sleep(fault.values["delay"])),
    "forward": _forward,
    "backward": _backward,
    "optimizer": _optimizer,
}
SLOW_PHASES = tuple(_STEP_EFFECTS)
SLOW = tuple(
    Kind(name=f"slow-{phase}", in_step=in_step, values=(DELAY,))
    for phase, in_step in _STEP_EFFECTS.items()
)


@contextmanager
def _nan_gradient(_fault: Fault, target: Target) -> Step:
    """Sets one number of the gradient into the middle block to NaN, as a faulty chip may do."""

    def set_nan(_module: nn.Module, gradients: Any) -> Any:
        changed = gradients[0].clone()
        changed.view(-1)[0] = float("nan")
        return (changed, *gradients[1:])

    with target.middle_block.register_full_backward_pre_hook(set_nan):
        yield


@contextmanager
def _nan_loss(_fault: Fault, target: Target) -> Step:
    def make_nan(module: nn.Module, _inputs: Any, loss: Tensor) -> Tensor | None:
        # A product keeps the graph, so that the backward runs as usual.
        return loss * float("nan") if module.training else None

    with target.parts[-1].register_forward_hook(make_nan):
        yield


@contextmanager
def _diverge(fault: Fault, target: Target) -> Step:
    def raise_learning_rate(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] *= fault.values["factor"]

    with target.optimizer.register_step_pre_hook(raise_learning_rate):
        yield


NUMBERS = (
    Kind(name="nan-gradient", in_step=_nan_gradient),
    Kind(name="nan-loss", in_step=_nan_loss),
    Kind(
        name="diverge",
        in_step=_diverge,
        values=(Value(name="factor", low=0, high=1e9, default=100),),
    ),
)


_MAX_FACTOR = 64
_FACTOR = Value(name="factor", low=2, high=_MAX_FACTOR, default=2, sort="whole number")


def _skew_shards(fault: Fault, target: Target) -> None:
    """Repeats the rank's samples ``factor`` times: the same loss, more time and more tokens."""
    step, x, y = target.batch
    times = int(fault.values["factor"])
    target.batch = step, x.repeat(times, 1), y.repeat(times, 1)


@contextmanager
def _unbalanced_stage(fault: Fault, target: Target) -> Step:
    """Each block of the rank computes its forward ``factor`` times and uses one result."""

    def compute_more(block: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if block.training:
            with torch.no_grad():
                for _ in range(int(fault.values["factor"]) - 1):
                    # forward and not a call: a call would run this hook again.
                    block.forward(*inputs)

    with ExitStack() as hooks:
        for part in target.parts:
            for block in part.blocks.values():
                hooks.enter_context(block.register_forward_pre_hook(compute_more))
        yield


@contextmanager
def _unbalanced_experts(fault: Fault, target: Target) -> Step:
    """Adds a bias to the router's scores of one expert in every block."""
    expert, bias = int(fault.values["expert"]), fault.values["bias"]

    def add_bias(router: nn.Module, _inputs: Any, scores: Tensor) -> Tensor | None:
        if not router.training:
            return None
        biases = torch.zeros_like(scores)
        biases[:, expert] = bias
        return scores + biases

    mixtures = [m for part in target.parts for m in part.modules() if isinstance(m, Mixture)]
    with ExitStack() as hooks:
        for mixture in mixtures:
            hooks.enter_context(mixture.router.register_forward_hook(add_bias))
        yield


def _refuse_degrees(*axes: str) -> Callable[[Fault, TrainConfig, Layout], str | None]:
    """Refuses axes whose ranks run one computation together: more work on one would block all."""

    def refuses(_fault: Fault, _config: TrainConfig, layout: Layout) -> str | None:
        wide = [axis for axis in axes if layout.degrees[axis] > 1]
        return f"it is not possible with --{wide[0]} above 1" if wide else None

    return refuses


def _refuses_expert(fault: Fault, config: TrainConfig, _layout: Layout) -> str | None:
    if not config.experts:
        return "it needs --experts, one of which it favours"
    if fault.values["expert"] < config.experts:
        return None
    return f"expert {fault.values['expert']:g} is none of --experts {config.experts}, from 0 on"


IMBALANCES = (
    Kind(
        name="skewed-shards",
        in_step=act_before_step(_skew_shards),
        values=(_FACTOR,),
        refuses=_refuse_degrees("pp", "tp"),
    ),
    Kind(
        name="unbalanced-stage",
        in_step=_unbalanced_stage,
        values=(_FACTOR,),
        refuses=_refuse_degrees("tp", "ep"),
    ),
    Kind(
        name="unbalanced-experts",
        in_step=_unbalanced_experts,
        values=(
            Value(name="expert", low=0, high=1023, default=0, sort="whole number"),
            Value(name="bias", low=-1e6, high=1e6, default=10),
        ),
        refuses=_refuses_expert,
    ),
)


# Of the pipe from the rank: cat ends with it, and timeout, by 124, when it is time.
_CONTINUE_LATER = 'timeout "$1" cat; test $? -ne 124 || kill -CONT "$2"'
_LAUNCHER_VARIABLE = "TORCHELASTIC_RUN_ID"


def _stop(fault: Fault, _target: Target) -> None:
    """Stops the rank; a stopped process runs nothing, so another process has to wake it."""
    arguments = (str(fault.values["duration"]), str(os.getpid()))
    # A session of its own, so that a signal to the job's group does not end the waking process.
    command = ["sh", "-c", _CONTINUE_LATER, "sh", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        os.kill(os.getpid(), signal.SIGSTOP)


def _preempt_job(_fault: Fault, _target: Target) -> None:
    # Without a launcher the parent is somebody's shell, and the rank is the whole job.
    is_launched = _LAUNCHER_VARIABLE in os.environ
    os.kill(os.getppid() if is_launched else os.getpid(), signal.SIGTERM)


SIGNAL_KINDS = (
    Kind(
        name="stop",
        in_step=act_before_step(_stop),
        # Below 100 ms the waking process could be done before the rank has stopped.
        values=(Value(name="duration", low=0.1, high=3600, default=5, sort="duration"),),
    ),
    Kind(name="kill", in_step=act_before_step(lambda *_: os.kill(os.getpid(), signal.SIGKILL))),
    Kind(name="preempt", in_step=act_before_step(lambda *_: os.kill(os.getpid(), signal.SIGTERM))),
    Kind(name="preempt-job", in_step=act_before_step(_preempt_job)),
)


_MISSING = Path("/nowhere/data/shard-00017.bin")


def _raise(fault: Fault, target: Target) -> None:
    """Raises; with ``linger`` the traceback is printed first and the process stays for a while."""
    error = ValueError(f"made in step {target.batch[0]}: a sample has no label")
    if linger := fault.values["linger"]:
        try:
            raise error
        except ValueError:
            traceback.print_exc()
        sys.stderr.flush()
        # As a process does whose threads are stuck: its collectives stay open for the others.
        time.sleep(linger)
    raise error


def _read_missing_data(_fault: Fault, _target: Target) -> None:
    _MISSING.read_bytes()


def _crash_at_exit(_fault: Fault, _target: Target) -> None:
    atexit.register(os.kill, os.getpid(), signal.SIGSEGV)


def _hang_at_exit(fault: Fault, _target: Target) -> None:
    atexit.register(time.sleep, fault.values["duration"])


_DURATION = Value(name="duration", low=0.1, high=3600, default=60, sort="duration")
END_KINDS = (
    Kind(
        name="raise",
        in_step=act_before_step(_raise),
        values=(Value(name="linger", low=0, high=3600, default=0, sort="duration"),),
    ),
    Kind(name="segfault", in_step=act_before_step(lambda *_: os.kill(os.getpid(), signal.SIGSEGV))),
    Kind(name="missing-data", in_step=act_before_step(_read_missing_data)),
    Kind(name="exit-crash", in_step=act_before_step(_crash_at_exit)),
    Kind(name="exit-hang", in_step=act_before_step(_hang_at_exit), values=(_DURATION,)),
)


_MAX_RANKS = 1_000_000


def _replace(name: str, fault: Fault, environment: Environment) -> Environment:
    return {**environment, name: f"{fault.values['value']:.0f}"}


WORLD_KINDS = tuple(
    Kind(
        name=kind,
        at_start=partial(_replace, name),
        values=(Value(name="value", low=low, high=_MAX_RANKS, sort="whole number"),),
    )
    for kind, name, low in (("wrong-rank", "RANK", 0), ("wrong-world-size", "WORLD_SIZE", 1))
)


BALLAST = ".ballast"
_MIB = 1 << 20
# A larger file system is most likely the machine's own.
_LARGEST_TO_FILL_BYTES = 256 * _MIB


@contextmanager
def _fill(fault: Fault, target: Target) -> Step:
    target.checkpoints.mkdir(parents=True, exist_ok=True)
    ballast = target.checkpoints / BALLAST
    _fill_up(ballast)
    yield
    # The ballast stays while the next step has the fault too.
    if not fault.is_due(target.batch[0] + 1):
        ballast.unlink()


def _fill_up(ballast: Path) -> None:
    # Smaller and smaller writes: a write of 1 MiB fails while almost 1 MiB is still free.
    for chunk_bytes in (_MIB, 4096, 1):
        try:
            with ballast.open("ab", buffering=0) as file:
                while file.write(bytes(chunk_bytes)):
                    pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _refuses(fault: Fault, config: TrainConfig, layout: Layout) -> str | None:
    if config.checkpoint_dir is None:
        return needs_checkpoints(fault, config, layout)
    folder = config.checkpoint_dir.absolute()
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    total_bytes = shutil.disk_usage(nearest).total
    if total_bytes <= _LARGEST_TO_FILL_BYTES:
        return None
    return (
        f"it would fill the file system of --checkpoint-dir {config.checkpoint_dir}, of "
        f"{total_bytes // _MIB} MiB; mount one of {_LARGEST_TO_FILL_BYTES // _MIB} MiB or less "
        "there, such as a tmpfs"
    )


DISK_KIND = Kind(name="full-disk", in_step=_fill, refuses=_refuses)


def _corrupt(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))


def _damage_kind(name: str, damage: Callable[[Path], None]) -> Kind:
    @contextmanager
    def damage_newest(_fault: Fault, target: Target) -> Step:
        yield  # the checkpoint of this step is written before the context is left
        newest, _ = find_newest(target.checkpoints)
        if newest is None:
            sys.stderr.write(f"fault: {name} found no valid checkpoint to damage\n")
            return
        files = [path for path in newest.path.rglob("*") if path.is_file()]
        # The largest file holds the tensors; the manifest and the index are smaller.
        damage(max(files, key=lambda path: (path.stat().st_size, path.name)))

    return Kind(name=name, in_step=damage_newest, refuses=needs_checkpoints)


DAMAGE_KINDS = (
    _damage_kind("corrupt-checkpoint", _corrupt),
    _damage_kind("truncate-checkpoint", lambda path: os.truncate(path, path.stat().st_size // 2)),
    _damage_kind("lose-checkpoint", Path.unlink),
)


def _run_out(fault: Fault, _target: Target) -> None:
    """Allocates until torch raises what it raises when the system has no memory left."""
    headroom_bytes = int(fault.values["mib"]) * _MIB
    # The hard limit stays: without root it could not be raised again.
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + headroom_bytes, hard))
    try:
        blocks = [torch.ones(_MIB, dtype=torch.uint8)]
        while True:
            # Blocks grow, so that a limit of gigabytes is reached in few allocations.
            blocks.append(torch.ones(len(blocks) * _MIB, dtype=torch.uint8))
    finally:  # the handlers of the error need memory too
        blocks = []
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


# A limit on the address space needs no rights; a cgroup's would need root and ends in signal 9.
MEMORY_KIND = Kind(
    name="oom",
    in_step=act_before_step(_run_out),
    values=(Value(name="mib", low=1, high=1 << 20, default=64, sort="whole number"),),
)


_ALL = (
    *SLOW,
    *SIGNAL_KINDS,
    *END_KINDS,
    *NUMBERS,
    *DAMAGE_KINDS,
    *IMBALANCES,
    *WORLD_KINDS,
    MEMORY_KIND,
    DISK_KIND,
    network.KIND,
)
KINDS = {kind.name: kind for kind in _ALL}
