"""A device whose stream goes on when the test says so, and whose events nobody may wait for."""

import time
from types import SimpleNamespace

import pytest

from lockstep.recorder.device import Device


class FakeStream:
    """The stream: ``now_ms`` is where its work ends, ``passed_ms`` how far it has come."""

    def __init__(self) -> None:
        self.now_ms, self.passed_ms, self.num_events = 0.0, -1.0, 0
        self.is_capturing = False

    def query(self) -> bool:
        return self.passed_ms >= self.now_ms

    def work(self, milliseconds: float) -> None:
        """A kernel of that duration is launched."""
        self.now_ms += milliseconds

    def keep_up(self) -> None:
        """The device idles until now, by the host's clock, and has done everything."""
        self.now_ms = max(self.now_ms, time.monotonic_ns() * 1e-6)
        self.passed_ms = self.now_ms


class FakeEvent:
    """As torch.cuda.Event; to wait for it, or to ask for times too early, fails the test."""

    def __init__(self, stream: FakeStream) -> None:
        self._stream = stream
        self.at_ms: float | None = None

    def record(self, stream: FakeStream | None = None) -> None:
        assert stream is None or stream is self._stream
        assert not self._stream.is_capturing
        self.at_ms = self._stream.now_ms
        self._stream.num_events += 1

    def query(self) -> bool:
        return self.at_ms is not None and self.at_ms <= self._stream.passed_ms

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert self.query()
        assert end_event.query()
        assert self.at_ms is not None
        assert end_event.at_ms is not None
        return end_event.at_ms - self.at_ms

    def synchronize(self) -> None:
        pytest.fail("nobody may wait for an event")

    wait = synchronize


def fake_device(stream: FakeStream) -> Device:
    """A device with that stream alone."""
    return Device(
        create_event=lambda: FakeEvent(stream),
        current_stream=lambda: stream,
        is_capturing=lambda: stream.is_capturing,
    )


def fake_module(stream: FakeStream) -> SimpleNamespace:
    """What stands in for ``torch.cuda``."""
    return SimpleNamespace(
        is_initialized=lambda: True,
        Event=lambda enable_timing=False: FakeEvent(stream),  # noqa: ARG005  # torch's name
        current_stream=lambda: stream,
        is_current_stream_capturing=lambda: stream.is_capturing,
    )
