"""The recorder in C does what the one in Python does, and exists wherever it can be compiled."""

import math
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.recorder import native
from lockstep.recorder.phases import CODE
from lockstep.recorder.rows import LOSSES
from lockstep_records.page.layout import COLLECTIVE_KINDS, PHASES
from lockstep_records.page.reader import read_page

from .one_pen import One

KILLS = int(os.environ.get("LOCKSTEP_KILLS", "50"))
OPEN = [*PHASES[:10]]
needs_c = pytest.mark.skipif(native.compiled is None, reason="nothing was compiled here")


def test_what_can_be_compiled_here_is_compiled() -> None:
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = shlex.split(sysconfig.get_config_var("CC"))[0]
    can = shutil.which(compiler) is not None and headers.exists()
    asked = os.environ.get(native.SWITCH) != "off"
    assert (native.compiled is not None) == (can and asked)


numbers = st.one_of(
    st.none(),
    st.floats(width=32),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e39, -1e39, 3, True, torch.tensor(0.5)]),
)
counts = st.one_of(st.integers(0, 1 << 20), st.just(torch.tensor(7)))
steps = st.fixed_dictionaries(
    {},
    optional={
        "step": st.one_of(st.none(), st.integers(-5, 600)),
        "loss": numbers,
        "gradient_norm": numbers,
        "learning_rate": numbers,
        "tokens": counts,
        "samples": counts,
        "sequence_lengths": st.lists(st.integers(0, 1 << 16), max_size=4),
    },
)
acts = st.one_of(
    st.tuples(st.just("step"), steps),
    st.tuples(st.just("enter_phase"), st.sampled_from([*OPEN, "lunch"])),
    st.tuples(st.just("hook"), st.sampled_from(OPEN)),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("turn"), st.booleans()),
    st.tuples(st.just("arrive"), st.none()),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("also"), st.tuples(st.integers(-2, 8), st.integers(-2, 8))),
    st.tuples(
        st.just("wait"),
        st.tuples(
            st.sampled_from([None, *COLLECTIVE_KINDS]),
            st.integers(0, 1 << 40),
            st.one_of(st.none(), st.integers(1, 64)),
        ),
    ),
)


def act(one: One, kind: str, told: Any) -> None:
    if kind == "step":
        one.do("step", **told)
    elif kind == "enter_phase":
        one.do("enter_phase", told)
    elif kind == "hook":
        one.recorder.phase_hook(CODE[told])("whatever", "it is called with")
    elif kind == "hold":
        one.recorder.held = told
    elif kind == "turn":
        one.recorder.restart(time.monotonic_ns()) if told else one.recorder.stop()
    elif kind == "arrive":
        one.do("first_arrival")
    elif kind == "take":
        one.callbacks.asked.append(("losses", repr(one.recorder.take_losses())))
    elif kind == "also":
        phase_hook = one.recorder.phase_hook(CODE["optimizer"])
        phase_hook.also = lambda *given: one.callbacks.asked.append(("also", *given))
        phase_hook.quiet_from, phase_hook.quiet_until = told
        phase_hook("what", "is given")
    else:
        one.wait(*told)


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(
        tempfile.mkdtemp(prefix="lockstep-test-recorders-", dir="/dev/shm")
    )  # pages lie on a tmpfs
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def both(memory: Path) -> tuple[One, One]:
    shutil.rmtree(memory, ignore_errors=True)
    recorders = One(memory, "python"), One(memory, "c")
    assert type(recorders[0].recorder) is not type(recorders[1].recorder)
    return recorders


@needs_c
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    bounds=st.tuples(st.floats(-10, 5), st.floats(0, 10), st.sampled_from([0, 1, 2, 3])),
    usual=st.booleans(),
    script=st.lists(acts, max_size=30),
)
def test_both_recorders_leave_the_same_whatever_a_loop_does(
    memory: Path, bounds: tuple[float, float, int], usual: bool, script: list[tuple[str, Any]]
) -> None:
    recorders = both(memory)
    for one in recorders:
        one.recorder.loss_floor, one.recorder.loss_bound, one.recorder.lasting_flags = bounds
        one.recorder.slow_seconds = math.inf
        one.recorder.usual_seconds = math.inf if usual else -1.0
        for kind, told in script:
            act(one, kind, told)
        assert one.callbacks.failures == 0
    assert recorders[0].left() == recorders[1].left()


@needs_c
@pytest.mark.parametrize(
    "told",
    [
        {"tokens": -1},
        {"tokens": 1 << 32},
        {"samples": 1.5},
        {"samples": "8"},
        {"loss": "low"},
        {"gradient_norm": [1, 2]},
        {"step": 1.5},
        {"step": 1 << 63},
        {"sequence_lengths": [-1]},
        {"sequence_lengths": [1 << 32]},
        {"sequence_lengths": 3},
    ],
)
def test_both_recorders_refuse_what_no_row_can_hold_and_count_nothing(
    memory: Path, told: dict[str, Any]
) -> None:
    for one in both(memory):
        one.do("step", tokens=5, samples=2, loss=1.0)
        one.do("step", **told)
        assert (one.callbacks.failures, one.raised) == (1, [])
        state = read_page(one.path).state
        assert (state["steps"], state["tokens"], state["samples"]) == (1, 5, 2)


@needs_c
@pytest.mark.parametrize("steps", [0, 5, 127, 128, 129, 300])
def test_both_recorders_keep_the_last_losses_until_they_are_taken(memory: Path, steps: int) -> None:
    for one in both(memory):
        for number in range(steps):
            one.recorder.step(loss=float(number))
        assert one.recorder.take_losses() == [float(number) for number in range(steps)][-LOSSES:]
        assert one.recorder.take_losses() == []


@needs_c
@pytest.mark.parametrize("told", [("lunch", 1, 8, 2), ("all_reduce", 1, 8, 0)])
def test_both_recorders_end_a_wait_that_cannot_be_counted(
    memory: Path, told: tuple[Any, ...]
) -> None:
    for one in both(memory):
        one.do("enter_phase", "forward")
        one.do("wait_ended", one.recorder.wait_begins(), *told)
        assert one.callbacks.failures == 1
        assert one.recorder.now_in == CODE["forward"]


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_the_suite_of_this_room_holds_without_what_is_compiled() -> None:
    if native.compiled is None:
        pytest.skip("it runs so already")
    chosen = "not server and not distributed and not e2e and not gpu"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", chosen, str(Path(__file__).parent)],
        env={**os.environ, native.SWITCH: "off"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
