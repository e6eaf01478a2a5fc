"""No error of ours gets into the training loop, and nothing that is not ours is held up."""

from typing import Any

import pytest

from lockstep.guard import guarded


class Watcher:
    """Raises the error that it is called with, and notes those handed to ``fail``."""

    def __init__(self) -> None:
        self.failed: list[Exception] = []
        self.taken: list[tuple[Any, ...]] = []

    def fail(self, error: Exception) -> None:
        self.failed.append(error)

    @guarded
    def take(self, *numbers: int, error: BaseException | None = None) -> None:
        """Takes numbers."""
        if error is not None:
            raise error
        self.taken.append(numbers)


@pytest.mark.parametrize(
    "error",
    [ValueError("a"), OSError(28, "No space left on device"), RecursionError(), MemoryError()],
    ids=repr,
)
def test_an_error_is_handed_to_fail_once_and_stops_nothing(error: Exception) -> None:
    watcher = Watcher()
    watcher.take(1, error=error)
    assert watcher.failed == [error]
    watcher.take(2, 3)
    assert (watcher.failed, watcher.taken) == ([error], [(2, 3)])


@pytest.mark.parametrize("exit_error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_exit_of_the_program_passes(exit_error: BaseException) -> None:
    watcher = Watcher()
    with pytest.raises(type(exit_error)):
        watcher.take(error=exit_error)
    assert watcher.failed == []


def test_a_guarded_method_keeps_its_name_and_its_docstring() -> None:
    assert (Watcher.take.__name__, Watcher.take.__doc__) == ("take", "Takes numbers.")
