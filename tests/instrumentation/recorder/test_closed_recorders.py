"""A recorder whose page is closed, even by a signal in the midst of a step, stops nothing."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.recorder import native
from lockstep.recorder.phases import NOT_WAITING
from lockstep_records.page.reader import read_page

from ..fake_device import FakeStream, fake_device
from .recorder_fixture import RecorderFixture

needs_c = pytest.mark.skipif(native.compiled is None, reason="nothing was compiled here")


@needs_c
def test_a_recorder_whose_page_is_closed_writes_nothing_more(root: Path) -> None:
    fixture = RecorderFixture(root)
    fixture.recorder.step()
    fixture.recorder.release()
    fixture.page.close()
    fixture.recorder.restart(time.monotonic_ns())
    fixture.recorder.enter_phase("forward")
    fixture.recorder.step(loss=1.0)
    assert fixture.recorder.wait_begins() == NOT_WAITING
    assert fixture.callbacks.calls[-1] == ("off", None)
    assert read_page(fixture.path).state["steps"] == 1


@needs_c
def test_an_interrupt_during_a_callback_reaches_the_loop(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = RecorderFixture(root)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fixture.callbacks, "step_ended", interrupted)  # as a signal would
    with pytest.raises(KeyboardInterrupt):
        fixture.recorder.step()
    assert fixture.callbacks.calls == []


class Closing:
    """A loss, a count and a list of lengths whose reading closes the page, as a signal may."""

    is_cuda = False

    def __init__(self, close: Callable[[], int]) -> None:
        self._close = close

    def item(self) -> int:
        return self._close()

    def __index__(self) -> int:
        return self._close()

    def __iter__(self) -> Iterator[int]:
        return iter([self._close()])

    def __len__(self) -> int:
        return 1


@needs_c
@pytest.mark.parametrize(
    "closing",
    [
        *("tick", "inspect_loss", "inspect_norm", "inspect_step", "step_ended", "stream"),
        *("loss", "tokens", "samples", "sequence_lengths"),
    ],
)
def test_a_page_that_is_closed_while_a_step_is_written_stops_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, closing: str
) -> None:
    fixture = RecorderFixture(root)
    fixture.recorder.step(loss=0.5)
    fixture.recorder.loss_bound, fixture.recorder.usual_seconds = -1.0, -1.0

    def close(*_: Any) -> int:
        if fixture.recorder.on:
            fixture.recorder.release()
            fixture.page.close()
        return 1

    arguments: dict[str, Any] = {"loss": 1.0, "gradient_norm": math.inf, "learning_rate": 1e-3}
    if closing == "stream":
        devices = iter([0])  # the second question comes at the end of the step

        def current_device() -> int:
            index = next(devices, None)
            return close() if index is None else index

        fixture.recorder.use_device(fake_device(FakeStream(), current_device=current_device))
    elif hasattr(fixture.callbacks, closing):
        monkeypatch.setattr(fixture.callbacks, closing, close)
        fixture.recorder.due_ns = 0
    else:
        arguments[closing] = Closing(close)
    fixture.recorder.step(**arguments)
    assert not fixture.recorder.on
    fixture.recorder.step(**arguments if closing in dir(fixture.callbacks) else {})
    assert read_page(fixture.path).state["steps"] == 1 + (closing == "step_ended")
