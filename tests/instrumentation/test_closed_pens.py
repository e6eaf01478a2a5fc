"""A pen whose page is closed, also by a signal in the midst of a step, stops nothing."""

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
def test_a_pen_whose_page_is_closed_writes_nothing_more(root: Path) -> None:
    one = One(root, "c")
    one.pen.step()
    one.pen.release()
    one.page.close()
    one.pen.restart(time.monotonic_ns())
    one.pen.mark("forward")
    one.pen.step(loss=1.0)
    assert one.pen.wait_begins() == NOT_WAITING
    assert one.owner.asked[-1] == ("off", None)
    assert read_page(one.path).state["steps"] == 1


@needs_c
def test_an_interrupt_while_the_owner_is_asked_reaches_the_loop(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = One(root, "c")

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(one.owner, "step_ended", interrupted)  # as a signal would
    with pytest.raises(KeyboardInterrupt):
        one.pen.step()
    assert one.owner.asked == []


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
        *("tick", "unusual_loss", "unusual_norm", "unusual_step", "step_ended", "take"),
        *("loss", "tokens", "samples", "sequence_lengths"),
    ],
)
def test_a_page_that_is_closed_while_a_step_is_written_stops_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    one = One(root, name)
    one.pen.step(loss=0.5)
    one.pen.loss_bound, one.pen.usual_seconds = -1.0, -1.0

    def close(*_: Any) -> int:
        if one.pen.on:
            one.pen.release()
            one.page.close()
        return 1

    told: dict[str, Any] = {"loss": 1.0, "gradient_norm": math.inf, "learning_rate": 1e-3}
    if place == "take":
        one.pen.numbers = SimpleNamespace(take=close)  # type: ignore[assignment]  # as on a GPU
    elif hasattr(one.owner, place):
        monkeypatch.setattr(one.owner, place, close)
        one.pen.due_ns = 0
        one.pen.held = False  # which opens the gate of the one in Python
    else:
        told[place] = Closing(close)
    one.pen.step(**told)
    assert not one.pen.on
    one.pen.step(**told if place in dir(one.owner) else {})
    assert read_page(one.path).state["steps"] == 1 + (place == "step_ended")
