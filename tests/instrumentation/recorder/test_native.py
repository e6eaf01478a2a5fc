"""The recorder in C exists wherever it can be compiled; the plain one writes the same rows."""

import math
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.recorder import native
from lockstep.recorder.interface import LOSSES
from lockstep.recorder.native import render
from lockstep.recorder.phases import CODE
from lockstep_records.page.layout import COLLECTIVE_KINDS, EXTRAS, PHASES
from lockstep_records.page.reader import read_page, read_rows

from .recorder_fixture import NotedCallbacks, RecorderFixture

OPEN = [*PHASES[:10]]
needs_c = pytest.mark.skipif(native.compiled is None, reason="nothing was compiled here")


def test_the_module_is_compiled_wherever_it_can_be() -> None:
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = shlex.split(sysconfig.get_config_var("CC"))[0]
    can_compile = shutil.which(compiler) is not None and headers.exists()
    is_switched_on = os.environ.get(native.SWITCH) != "off"
    assert (native.compiled is not None) == (can_compile and is_switched_on)


@pytest.mark.skipif(not os.environ.get("CI"), reason="a compiler of another year may warn of more")
def test_the_c_code_compiles_without_a_warning(tmp_path: Path) -> None:
    sources = sorted((Path(__file__).parents[3] / "instrumentation" / "native").glob("*.c"))
    compiler = shlex.split(sysconfig.get_config_var("CC"))
    strict = ("-O3", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wshadow", "-Werror")
    headers = f"-I{sysconfig.get_path('include')}"
    command = [*compiler, *strict, headers, "-o", str(tmp_path / "native.so"), *map(str, sources)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


@needs_c
def test_a_module_of_another_table_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.import_compiled() is native.compiled
    monkeypatch.setattr(native.compiled, "PAGE_LAYOUT", "0")
    assert native.import_compiled() is None


def test_the_plain_recorder_says_once_what_is_not_recorded(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "compiled", None)
    native._report_plain.cache_clear()
    for number in range(2):
        native.new_recorder(RecorderFixture(root, f"plain-{number}").page, NotedCallbacks())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "make install" in caplog.text


def test_the_c_header_is_that_of_the_table_of_the_page() -> None:
    header = Path(__file__).parents[3] / "instrumentation" / "native" / "page_layout.h"
    assert header.read_text(encoding="utf-8") == render()


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
actions = st.one_of(
    st.tuples(st.just("step"), steps),
    st.tuples(st.just("enter_phase"), st.sampled_from([*OPEN, "lunch"])),
    st.tuples(st.just("hook"), st.sampled_from(OPEN)),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("switch"), st.booleans()),
    st.tuples(st.just("arrive"), st.none()),
    st.tuples(st.just("take"), st.none()),
    st.tuples(st.just("callback"), st.tuples(st.integers(-2, 8), st.integers(-2, 8))),
    st.tuples(
        st.just("wait"),
        st.tuples(
            st.sampled_from([None, *COLLECTIVE_KINDS]),
            st.integers(0, 1 << 40),
            st.one_of(st.none(), st.integers(1, 64)),
        ),
    ),
)


def act(fixture: RecorderFixture, kind: str, argument: Any) -> None:
    if kind == "step":
        fixture.call("step", **argument)
    elif kind == "enter_phase":
        fixture.call("enter_phase", argument)
    elif kind == "hook":
        fixture.recorder.phase_hook(CODE[argument])("whatever", "it is called with")
    elif kind == "hold":
        fixture.recorder.held = argument
    elif kind == "switch":
        fixture.recorder.restart(time.monotonic_ns()) if argument else fixture.recorder.stop()
    elif kind == "arrive":
        fixture.call("first_arrival")
    elif kind == "take":
        fixture.callbacks.calls.append(("losses", repr(fixture.recorder.take_losses())))
    elif kind == "callback":
        phase_hook = fixture.recorder.phase_hook(CODE["optimizer"])
        phase_hook.callback = lambda *args: fixture.callbacks.calls.append(("callback", *args))
        phase_hook.quiet_from, phase_hook.quiet_until = argument
        phase_hook("what", "is given")
    else:
        fixture.wait(*argument)


def both_recorders(root: Path) -> tuple[RecorderFixture, RecorderFixture]:
    shutil.rmtree(root, ignore_errors=True)
    fixtures = RecorderFixture(root, "plain"), RecorderFixture(root, "c")
    assert type(fixtures[0].recorder) is not type(fixtures[1].recorder)
    return fixtures


@needs_c
@given(names=st.sets(st.sampled_from([*EXTRAS])), loss=numbers)
@settings(max_examples=30, deadline=None)
def test_both_recorders_take_extras_into_the_next_row_alone(names: set[str], loss: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="lockstep-test-", dir="/dev/shm") as folder:
        for fixture in both_recorders(Path(folder) / "pages"):
            fixture.recorder.step()
            for name in names:
                fixture.page.add_to_row(name, 1)
            fixture.recorder.step(loss=loss)
            fixture.recorder.step()
            unknown, noted = dict.fromkeys(EXTRAS), dict.fromkeys(names, 1)
            rows = read_rows(read_page(fixture.path))
            assert [row["extras"] for row in rows] == [unknown, unknown | noted, unknown]


Bounds: TypeAlias = tuple[float, float, int]  # loss floor, loss bound, lasting flags
Script: TypeAlias = list[tuple[str, Any]]
scripts = given(
    bounds=st.tuples(st.floats(-10, 5), st.floats(0, 10), st.sampled_from([0, 1, 2, 3])),
    usual=st.booleans(),
    script=st.lists(actions, max_size=30),
)


def examples(number: int) -> settings:
    suppressed = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=number, deadline=None, suppress_health_check=suppressed)


@needs_c
@examples(40)
@scripts
def test_both_recorders_write_the_same_whatever_a_loop_does(
    root: Path, bounds: Bounds, usual: bool, script: Script
) -> None:
    check_that_both_write_the_same(root, bounds, usual, script)


@needs_c
@pytest.mark.release
@pytest.mark.timeout(300)
@examples(3000)
@scripts
def test_both_recorders_write_the_same_in_thousands_of_loops(
    root: Path, bounds: Bounds, usual: bool, script: Script
) -> None:
    check_that_both_write_the_same(root, bounds, usual, script)


def check_that_both_write_the_same(root: Path, bounds: Bounds, usual: bool, script: Script) -> None:
    fixtures = both_recorders(root)
    for fixture in fixtures:
        fixture.recorder.loss_floor, fixture.recorder.loss_bound, fixture.recorder.lasting_flags = (
            bounds
        )
        fixture.recorder.slow_seconds = math.inf
        fixture.recorder.usual_seconds = math.inf if usual else -1.0
        for kind, argument in script:
            act(fixture, kind, argument)
        assert fixture.callbacks.failures == 0
    assert fixtures[0].outcome() == fixtures[1].outcome()


@needs_c
@pytest.mark.parametrize(
    "arguments",
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
def test_both_recorders_write_a_step_without_the_number_that_no_row_can_hold(
    root: Path, arguments: dict[str, Any]
) -> None:
    for fixture in both_recorders(root):
        fixture.call("step", tokens=5, samples=2, loss=1.0)
        fixture.call("step", **arguments)
        assert (fixture.callbacks.failures, fixture.raised) == (0, [])
        failed = [call[1] for call in fixture.callbacks.calls if call[0] == "part"]
        assert failed == ["loop_numbers"]
        state = read_page(fixture.path).state
        assert (state["steps"], state["tokens"], state["samples"]) == (2, 5, 2)
        last = read_rows(read_page(fixture.path))[-1]
        assert (last["step"], last["tokens"], last["samples"]) == (1, 0, 0)
        assert (last["loss"], last["gradient_norm"], last["extras"]["sequence_max"]) == (
            None,
            None,
            None,
        )


@needs_c
@pytest.mark.parametrize("steps", [0, 5, 127, 128, 129, 300])
def test_both_recorders_keep_the_last_losses_until_they_are_taken(root: Path, steps: int) -> None:
    for fixture in both_recorders(root):
        for number in range(steps):
            fixture.recorder.step(loss=float(number))
        assert (
            fixture.recorder.take_losses() == [float(number) for number in range(steps)][-LOSSES:]
        )
        assert fixture.recorder.take_losses() == []


@needs_c
@pytest.mark.parametrize("wait", [("lunch", 1, 8, 2), ("all_reduce", 1, 8, 0)])
def test_both_recorders_end_a_wait_that_does_not_count(root: Path, wait: tuple[Any, ...]) -> None:
    for fixture in both_recorders(root):
        fixture.call("enter_phase", "forward")
        fixture.call("wait_ended", fixture.recorder.wait_begins(), *wait)
        assert fixture.callbacks.failures == 1
        assert fixture.recorder.phase == CODE["forward"]


@pytest.mark.release
def test_a_wheel_has_the_recorder_of_another_machine(tmp_path: Path) -> None:
    machine, elf_machine = ("aarch64", 0xB7) if platform.machine() == "x86_64" else ("x86_64", 0x3E)
    if shutil.which(f"{machine}-linux-gnu-gcc") is None:
        pytest.skip(f"there is no cross compiler for {machine}")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        env={**os.environ, "LOCKSTEP_WHEEL_MACHINE": machine},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        check=True,
    )
    [wheel] = tmp_path.glob(f"*-linux_{machine}.whl")
    with zipfile.ZipFile(wheel) as files:
        libraries = [name for name in files.namelist() if name.endswith(".so")]
        headers = [files.read(library)[:20] for library in libraries]
    assert sum(machine in library for library in libraries) == 1
    assert len(libraries) == 2  # with NCCL's plugin
    for header in headers:
        assert (header[:4], int.from_bytes(header[18:20], "little")) == (b"\x7fELF", elf_machine)
