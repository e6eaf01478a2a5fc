"""Chooses the recorder: in C where it was compiled, else in Python; both do the same.

LOCKSTEP_NATIVE=off takes the one in Python. A compiled module is taken only if it is of this table
of the page, see ``c_header``.
"""

import importlib
import logging
import os
from types import ModuleType
from typing import Any

from lockstep.recorder.bus import bus_factor
from lockstep.recorder.c_header import fingerprint
from lockstep.recorder.lengths import figures_of
from lockstep.recorder.phases import CODE, code_of
from lockstep.recorder.recorder import Ignored, StepRecorder
from lockstep.recorder.rows import RecorderCallbacks, Rows
from lockstep_records.page.layout import COLLECTIVE_KINDS
from lockstep_records.page.writer import PageWriter

log = logging.getLogger("lockstep")
SWITCH = "LOCKSTEP_NATIVE"


def _import_compiled() -> ModuleType | None:
    """The C module; None where it is switched off or there was no compiler at installation."""
    if os.environ.get(SWITCH) == "off":
        return None
    # By its full name: `from lockstep import` would make the package import itself.
    try:
        module = importlib.import_module("lockstep._native")
    except ImportError:
        return None
    if not _is_of_these_sources(module):
        log.warning("lockstep._native is of older sources and not used; run make install")
        return None
    return module


def _is_of_these_sources(module: Any) -> bool:
    """Whether the module has our layout and methods; one left in a checkout may have others."""
    methods = {**vars(Rows), **vars(StepRecorder)}
    return getattr(module, "PAGE_LAYOUT", "") == fingerprint() and all(
        hasattr(module.StepRecorder, name) for name in methods if not name.startswith("_")
    )


compiled = _import_compiled()


def new_recorder(page: PageWriter, callbacks: RecorderCallbacks) -> StepRecorder:
    """A recorder that writes a page, in C where it was compiled."""
    if compiled is None:
        return StepRecorder(page, callbacks)
    recorder: StepRecorder = compiled.StepRecorder(
        file=page.file,
        slot=page.words,
        periodic=page.periodic.words,
        noted=page.noted,
        rows=page.rows,
        heartbeat=page.heartbeat_word,
        callbacks=callbacks,
        codes=CODE,
        kinds={kind: index for index, kind in enumerate(COLLECTIVE_KINDS)},
        # Formulas and messages stay in Python; the C code calls them where they are due.
        code_of=code_of,
        bus_factor=bus_factor,
        figures_of=figures_of,
        ignored=Ignored,
    )
    return recorder
