"""Looks for the forward of models whose own call never fires, by the modules inside them.

A loop may call ``model.forward``, other methods, or parts. Every module inside then marks where a
forward begins, in a few of the first steps; those that ever began one keep their mark.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from lockstep.monitor.live import LiveMonitor
from lockstep.patches import evaluations
from lockstep.patches.layers import is_compiled, layers
from lockstep.recorder.interface import Ignored, StepRecorder
from lockstep.recorder.phases import BACKWARD, FORWARD, SYNC

_SETTLED_AT_STEP = 8
# A module that runs there begins nothing: a part of a forward, or one that is computed again.
_INSIDE = frozenset({FORWARD, BACKWARD, SYNC})


class _Begin:
    """Marks a forward where a module is the first to run."""

    def __init__(self, recorder: StepRecorder, enter: Callable[[], object]) -> None:
        self._recorder, self._enter, self.has_begun = recorder, enter, False

    def __call__(self, *_: Any) -> None:
        if not is_dynamo_compiling() and self._recorder.phase not in _INSIDE:
            self.has_begun = True
            self._enter()

    def __reduce__(self) -> tuple[type[Ignored], tuple[()]]:
        return Ignored, ()  # a copy is not watched


class SubmoduleSearch:
    """Searches the models of one monitor; holds none of them.

    Args:
        marks: what to call when a forward begins, by model.
    """

    def __init__(
        self, recorder: StepRecorder, marks: "WeakKeyDictionary[torch.nn.Module, Any]"
    ) -> None:
        self._recorder, self._marks = recorder, marks
        self._found: list[tuple[_Begin, RemovableHandle]] = []
        self._has_begun = self._is_over = False

    def inspect_steps(self, steps: int, *, has_forward: bool) -> None:
        """Begins the search after a step without a forward, and ends it once it has found some."""
        if self._is_over:
            return
        if not self._has_begun:
            self._has_begun, self._is_over = True, has_forward
            if not has_forward:
                self._begin()
        elif steps >= _SETTLED_AT_STEP and any(begin.has_begun for begin, _ in self._found):
            self.end()

    def _begin(self) -> None:
        for model, enter in self._marks.items():
            for module in model.modules():
                if module is not model and not isinstance(module, torch.jit.ScriptModule):
                    begin = _Begin(self._recorder, enter)
                    handle = module.register_forward_pre_hook(begin)
                    self._found.append((begin, handle))

    def end(self) -> bool:
        """Takes the marks off that never began a forward; returns whether others are left."""
        self._is_over = True
        for begin, handle in self._found:
            if not begin.has_begun:
                handle.remove()
        self._found = [(begin, handle) for begin, handle in self._found if begin.has_begun]
        return bool(self._found)


def search_submodules(monitor: LiveMonitor, models: list[torch.nn.Module]) -> None:
    """Has the first steps of a monitor looked at; not in what is compiled, which a hook breaks."""
    marks: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()
    for model in models:
        enter = getattr(model, evaluations.ATTRIBUTE, None)
        if enter is not None and not any(map(is_compiled, layers(model))):
            marks[model] = enter
    monitor.first_steps.search = SubmoduleSearch(monitor.recorder, marks)
