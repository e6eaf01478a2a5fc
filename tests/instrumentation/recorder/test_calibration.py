"""The recorder in C times a calculation on the loop's core, now and then and on no device."""

import time
from pathlib import Path

import pytest

from lockstep_records.page.reader import read_page, read_rows

from ..fake_device import FakeStream, fake_device
from .recorder_fixture import RecorderFixture
from .test_native import needs_c

pytestmark = pytest.mark.timeout(30)
_LONG_STEP_SECONDS = 0.03
_MAX_NS = 65_535


def calibrations(fixture: RecorderFixture) -> list[int]:
    rows = read_rows(read_page(fixture.path))
    return [row["calibration_ns"] for row in rows if row["calibration_ns"] is not None]


@needs_c
def test_a_step_that_is_long_enough_has_a_calibration_of_microseconds(root: Path) -> None:
    fixture = RecorderFixture(root, "c")
    for _ in range(8):
        time.sleep(_LONG_STEP_SECONDS)
        fixture.recorder.step()
    values = calibrations(fixture)
    # A machine may hold one up for longer than a row can say.
    assert len(values) >= 4
    assert all(100 < value <= _MAX_NS for value in values)


@needs_c
def test_short_steps_share_a_calibration(root: Path) -> None:
    fixture = RecorderFixture(root, "c")
    begin = time.monotonic()
    for _ in range(60):
        fixture.recorder.step()
    seconds = time.monotonic() - begin
    assert 0 < len(calibrations(fixture)) <= 1 + seconds / 0.025


def test_the_recorder_in_python_calibrates_nothing(root: Path) -> None:
    fixture = RecorderFixture(root, "python")
    for _ in range(3):
        fixture.recorder.step()
    assert not calibrations(fixture)


@needs_c
def test_a_loop_whose_times_are_a_devices_has_no_calibration(root: Path) -> None:
    fixture = RecorderFixture(root, "c")
    fixture.recorder.use_device(fake_device(FakeStream()))
    for _ in range(3):
        time.sleep(_LONG_STEP_SECONDS)
        fixture.recorder.step()
    assert not calibrations(fixture)
