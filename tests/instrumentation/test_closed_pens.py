"""A recorder whose page is closed, also by a signal in the midst of a step, stops nothing."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.recorder import native
from lockstep.recorder.phases import NOT_WAITING
from lockstep_records.page.reader import read_page

from .one_pen import One

needs_c = pytest.mark.skipif(native.compiled is None, reason="nothing was compiled here")


@needs_c
def test_a_recorder_whose_page_is_closed_writes_nothing_more(root: Path) -> None:
    one = One(root, "c")
    one.recorder.step()
    one.recorder.release()
    one.page.close()
    one.recorder.restart(time.monotonic_ns())
    one.recorder.enter_phase("forward")
    one.recorder.step(loss=1.0)
    assert one.recorder.wait_begins() == NOT_WAITING
    assert one.callbacks.asked[-1] == ("off", None)
    assert read_page(one.path).state["steps"] == 1


@needs_c
def test_an_interrupt_while_the_owner_is_asked_reaches_the_loop(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = One(root, "c")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(one.callbacks, "step_ended", interrupted)  # as a signal would
    with pytest.raises(KeyboardInterrupt):
        one.recorder.step()
    assert one.callbacks.asked == []


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
@pytest.mark.parametrize("name", ["python", "c"])
@pytest.mark.parametrize(
    "place",
    [
        *("tick", "inspect_loss", "inspect_norm", "inspect_step", "step_ended", "take"),
        *("loss", "tokens", "samples", "sequence_lengths"),
    ],
)
def test_a_page_that_is_closed_while_a_step_is_written_stops_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    one = One(root, name)
    one.recorder.step(loss=0.5)
    one.recorder.loss_bound, one.recorder.usual_seconds = -1.0, -1.0

    def close(*_: Any) -> int:
        if one.recorder.on:
            one.recorder.release()
            one.page.close()
        return 1

    told: dict[str, Any] = {"loss": 1.0, "gradient_norm": math.inf, "learning_rate": 1e-3}
    if place == "take":
        one.recorder.numbers = SimpleNamespace(take=close)  # type: ignore[assignment]  # as on a GPU
    elif hasattr(one.callbacks, place):
        monkeypatch.setattr(one.callbacks, place, close)
        one.recorder.due_ns = 0
        one.recorder.held = False  # which opens the gate of the one in Python
    else:
        told[place] = Closing(close)
    one.recorder.step(**told)
    assert not one.recorder.on
    one.recorder.step(**told if place in dir(one.callbacks) else {})
    assert read_page(one.path).state["steps"] == 1 + (place == "step_ended")
