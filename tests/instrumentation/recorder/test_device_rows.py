"""Rows are written with the host's times and once more with the device's."""

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.recorder import native
from lockstep.recorder.device import ALLOWANCE_NS
from lockstep.recorder.phases import CODE, FLAG, NOT_WAITING
from lockstep_catalogue.labels import STEP_PHASES
from lockstep_records.page.reader import read_page, read_rows

from ..fake_device import UNBOUNDED_NS, FakeStream, calls, fail_from_now, fake_device, last_error
from .recorder_fixture import RecorderFixture

LAG_MS = 5.0
pytestmark = pytest.mark.skipif(native.compiled is None, reason="nothing was compiled here")


class DeviceFixture(RecorderFixture):
    """A recorder on a device that follows the test."""

    def __init__(
        self, root: Path, allowance_ns: int = UNBOUNDED_NS, *, keeps_up: bool = False
    ) -> None:
        super().__init__(root)
        self.stream = FakeStream()
        self.stream.keeps_up = keeps_up
        self.recorder.use_device(fake_device(self.stream, allowance_ns=allowance_ns))

    def phase(self, name: str, milliseconds: float) -> None:
        self.recorder.enter_code(CODE[name])
        self.stream.work(milliseconds)

    def wait_for(self, kind: str | None, milliseconds: float) -> None:
        interrupted = self.recorder.wait_begins()
        self.stream.work(milliseconds)
        self.recorder.wait_ended(interrupted, kind, 1, 8, 2)

    def step(self, *, lag_ms: float = LAG_MS) -> None:
        """Data 1, forward 4, backward 8, all-reduce 2, optimizer 1 ms of the device."""
        for name, milliseconds in (("data", 1.0), ("forward", 4.0), ("backward", 8.0)):
            self.phase(name, milliseconds)
        self.wait_for("all_reduce", 2.0)
        self.phase("optimizer", 1.0)
        self.recorder.enter_code(CODE["other"])
        self.recorder.step(loss=1.0)
        self.stream.passed_ms = self.stream.now_ms - lag_ms

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in read_rows(read_page(self.path))]

    def totals(self) -> dict[str, Any]:
        self.page.commit(1)
        self.page.periodic.commit(1)
        page = read_page(self.path)
        return {**page.periodic, **page.state}


@pytest.fixture
def fixture(root: Path) -> DeviceFixture:
    return DeviceFixture(root)


def clocks(fixture: DeviceFixture) -> str:
    """One letter a row: d of the device, p where that is awaited, h of the host."""
    letters = {FLAG["device"]: "d", FLAG["device_pending"]: "p", 0: "h"}
    both = FLAG["device"] | FLAG["device_pending"]
    return "".join(letters[row["flags"] & both] for row in fixture.rows())


def test_a_row_gets_the_devices_times_once_the_device_has_passed_it(fixture: DeviceFixture) -> None:
    for _ in range(4):
        fixture.step()
    assert clocks(fixture) == "ddpp"
    row = fixture.rows()[1]
    spent = {name: row["phase_seconds"][name] for name in STEP_PHASES}
    expected = {"data": 0.001, "forward": 0.004, "backward": 0.008, "sync": 0.002}
    assert spent == pytest.approx(
        expected | {"optimizer": 0.001, "checkpoint": 0, "eval": 0, "other": 0}
    )
    assert row["seconds"] == pytest.approx(0.016)
    assert row["first_arrival_ns"] - row["start_ns"] == pytest.approx(13e6, abs=10)
    assert row["last_arrival_ns"] == pytest.approx(row["first_arrival_ns"], abs=10)


def test_rows_that_no_device_passed_keep_the_hosts_times_and_say_so(fixture: DeviceFixture) -> None:
    for _ in range(3):
        fixture.step(lag_ms=1e6)
    fixture.recorder.settle()
    assert clocks(fixture) == "ppp"
    assert all(row["extras"]["host_bound_seconds"] is None for row in fixture.rows())
    assert fixture.totals()["settled_steps"] == fixture.totals()["device_dropped"] == 3


def test_a_step_in_which_a_graph_is_captured_is_the_hosts_and_the_next_is_the_devices(
    fixture: DeviceFixture,
) -> None:
    fixture.step()
    fixture.stream.is_capturing = True
    fixture.step()
    fixture.stream.is_capturing = False
    fixture.step()
    fixture.step()
    fixture.step()
    assert clocks(fixture) == "dhhpp"


def test_a_step_of_more_events_than_there_is_room_for_is_the_hosts(fixture: DeviceFixture) -> None:
    for _ in range(2):
        fixture.phase("forward", 1.0)
        for _ in range(1100):
            fixture.wait_for("all_gather", 0.01)
        fixture.recorder.step()
        fixture.stream.passed_ms = fixture.stream.now_ms
    fixture.step()
    fixture.step()
    fixture.step()
    assert clocks(fixture) == "hhdpp"


@pytest.mark.parametrize("num_waits", [0, 1, 2, 30])
def test_stamps_thin_out_until_a_step_makes_six_calls_and_totals_stand_for_all_steps(
    root: Path, num_waits: int
) -> None:
    fixture = DeviceFixture(root, ALLOWANCE_NS)

    def step() -> None:
        for name, milliseconds in (("data", 1.0), ("forward", 4.0), ("backward", 8.0)):
            fixture.phase(name, milliseconds)
        fixture.recorder.first_arrival()
        for _ in range(num_waits):
            fixture.wait_for("all_reduce", 2.0)
        fixture.phase("optimizer", 1.0)
        fixture.recorder.enter_code(CODE["other"])
        fixture.recorder.step()
        fixture.stream.passed_ms = fixture.stream.now_ms - LAG_MS

    for _ in range(32):
        step()
    before = sum(calls().values())
    for _ in range(1024):
        step()
    assert sum(calls().values()) - before <= 6 * 1024
    fixture.recorder.settle()
    totals, rows = fixture.totals(), fixture.rows()
    stride = totals["device_stride"]
    timed = [row["step"] for row in rows if row["flags"] & FLAG["device"]]
    assert stride > 1
    assert timed == [row["step"] for row in rows if row["step"] % stride == 0]
    assert totals["settled_steps"] == totals["steps"] == 1056
    spent, total = totals["phase_seconds"], sum(totals["phase_seconds"].values())
    parts = {"data": 1, "forward": 4, "backward": 8, "optimizer": 1, "sync": 2 * num_waits}
    for name, milliseconds in parts.items():
        assert spent[name] / total == pytest.approx(milliseconds / sum(parts.values()), abs=0.02)


def test_long_steps_are_all_timed_within_a_thousandth_of_them(root: Path) -> None:
    fixture = DeviceFixture(root, ALLOWANCE_NS)
    for _ in range(4):
        fixture.phase("data", 0.0)
        time.sleep(0.3)
        fixture.step()
    assert fixture.totals().get("device_stride") in {None, 1}


def test_an_answer_that_is_not_there_yet_leaves_no_error_for_torch(fixture: DeviceFixture) -> None:
    assert fixture.recorder.is_device_busy() is True
    for _ in range(3):
        fixture.step(lag_ms=1e6)
    assert last_error() == 0


def test_rows_are_the_hosts_again_when_the_device_fails(
    fixture: DeviceFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        fixture.step()
    fail_from_now(monkeypatch)
    for _ in range(3):
        fixture.step()
    assert fixture.callbacks.failures == 0
    assert fixture.recorder.is_device_busy() is None
    assert clocks(fixture).startswith("d")
    assert clocks(fixture).endswith("hh")
    assert fixture.totals()["settled_steps"] == 6


def test_a_collective_that_is_started_in_another_stream_is_no_wait(root: Path) -> None:
    fixture, streams = RecorderFixture(root), [FakeStream(), FakeStream()]
    current = [streams[0]]
    device = replace(fake_device(streams[0]), current_stream=lambda _device: current[0].handle)
    fixture.recorder.use_device(device)
    current[0] = streams[1]
    assert fixture.recorder.wait_begins() == NOT_WAITING
    current[0] = streams[0]
    assert fixture.recorder.wait_begins() != NOT_WAITING


def test_waiting_for_a_loader_is_idle_and_a_hidden_loader_is_none(fixture: DeviceFixture) -> None:
    for _ in range(3):
        fixture.phase("data", 0.0)
        fixture.phase("forward", 4.0)
        fixture.recorder.step()
        fixture.stream.passed_ms = fixture.stream.now_ms
    assert fixture.totals()["host_bound_seconds"]["data"] == 0
    assert [row["phase_seconds"]["data"] for row in fixture.rows()[:2]] == [0, 0]


@pytest.mark.timing
def test_a_backward_that_is_short_of_launches_is_bound_by_the_host(root: Path) -> None:
    fixture = DeviceFixture(root, keeps_up=True)
    for _ in range(4):
        for name in ("data", "forward", "backward", "optimizer", "other"):
            fixture.phase(name, 0.0)
            time.sleep(0.001)
        fixture.recorder.step()
    rows = [row for row in fixture.rows() if row["flags"] & FLAG["device"]][1:]
    assert len(rows) == 2
    for row in rows:
        launches = row["phase_seconds"]["backward"] + row["phase_seconds"]["optimizer"]
        assert row["extras"]["host_bound_seconds"] >= 0.9 * launches > 0
    assert fixture.totals()["launch_bound_steps"] >= 2


actions = st.one_of(
    st.tuples(st.just("phase"), st.sampled_from(STEP_PHASES), st.floats(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from([None, "all_reduce", "send_recv"]), st.floats(0, 9)),
    st.tuples(st.just("step"), st.none(), st.floats(0, 30)),
    st.tuples(st.just("arrive"), st.none(), st.floats(0, 1)),
    st.tuples(st.just("capture"), st.booleans(), st.just(0.0)),
)


def act(fixture: DeviceFixture, action: str, argument: Any, milliseconds: float) -> None:
    if action == "phase":
        fixture.phase(argument, milliseconds)
    elif action == "wait":
        fixture.wait_for(argument, milliseconds)
    elif action == "arrive":
        fixture.recorder.first_arrival()
        fixture.stream.work(milliseconds)
    elif action == "capture":
        fixture.stream.is_capturing = argument
    else:
        fixture.recorder.step(loss=milliseconds)
        fixture.stream.passed_ms = fixture.stream.now_ms - milliseconds


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=st.lists(actions, max_size=40))
def test_whatever_a_loop_does_each_row_is_settled_once_and_totals_are_their_sums(
    root: Path, script: list[tuple[str, Any, float]]
) -> None:
    shutil.rmtree(root, ignore_errors=True)
    fixture = DeviceFixture(root)
    for action in script:
        act(fixture, *action)
    fixture.recorder.settle()
    totals, rows = fixture.totals(), fixture.rows()
    on_device = [row for row in rows if row["flags"] & FLAG["device"]]
    assert totals["settled_steps"] == totals["steps"] == len(rows)
    assert totals["device_steps"] == len(on_device)
    assert totals["device_dropped"] == len(rows) - len(on_device)
    assert fixture.callbacks.failures == 0
    for name in STEP_PHASES:
        of_rows = sum(row["phase_seconds"][name] for row in rows)
        assert totals["phase_seconds"][name] == pytest.approx(of_rows, abs=1e-5)
    for row in on_device:
        spent = row["phase_seconds"].values()
        assert sum(spent) == pytest.approx(row["seconds"], abs=1e-5)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(loader_ms=st.floats(0, 9), kernels=st.lists(st.floats(0.1, 9), min_size=3, max_size=3))
def test_of_a_loader_only_what_the_device_waits_for_counts(
    root: Path, loader_ms: float, kernels: list[float]
) -> None:
    shutil.rmtree(root, ignore_errors=True)
    fixture = DeviceFixture(root)
    for _ in range(4):
        fixture.phase("data", loader_ms)  # of work that the stream has while the host loads
        for name, milliseconds in zip(("forward", "backward", "optimizer"), kernels, strict=True):
            fixture.phase(name, milliseconds)
        fixture.recorder.enter_code(CODE["other"])
        fixture.recorder.step()
        fixture.stream.passed_ms = fixture.stream.now_ms
    fixture.recorder.settle()
    [first, *_] = fixture.rows()
    assert first["phase_seconds"]["data"] == pytest.approx(loader_ms / 1e3, rel=1e-3, abs=1e-6)
    assert first["seconds"] == pytest.approx((loader_ms + sum(kernels)) / 1e3, rel=1e-3)
