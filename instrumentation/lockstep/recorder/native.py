"""Chooses the recorder: the one in C, or the plain one where that was not compiled.

LOCKSTEP_NATIVE=off takes the plain one. A compiled module is taken only if it is of this table of
the page, see ``c_header``.
"""

import importlib
import logging
import os
from functools import cache
from types import ModuleType

from lockstep.recorder.c_header import fingerprint
from lockstep.recorder.formulas import bus_factor, sequence_figures
from lockstep.recorder.interface import Ignored, RecorderCallbacks, StepRecorder
from lockstep.recorder.phases import CODE, code_of
from lockstep.recorder.plain import PlainRecorder
from lockstep_records.page.layout import COLLECTIVE_KINDS
from lockstep_records.page.writer import PageWriter

log = logging.getLogger("lockstep")
SWITCH = "LOCKSTEP_NATIVE"


def import_compiled() -> ModuleType | None:
    """The C module; None where it is switched off, missing, or of other sources than these."""
    if os.environ.get(SWITCH) == "off":
        return None
    # By its full name: `from lockstep import` would make the package import itself.
    try:
        module = importlib.import_module("lockstep._native")
    except ImportError:
        return None
    # A checkout may hold a module of another table.
    return module if getattr(module, "PAGE_LAYOUT", "") == fingerprint() else None


compiled = import_compiled()


@cache
def _report_plain() -> None:
    """Says once what is not recorded."""
    log.warning(
        "the recorder in C is off or not compiled (make install): no times of a device and "
        "no stops of the process are recorded, and recording costs several times as much"
    )


def new_recorder(page: PageWriter, callbacks: RecorderCallbacks) -> StepRecorder:
    """A recorder that writes a page, in C where it was compiled."""
    if compiled is None:
        _report_plain()
        return PlainRecorder(page, callbacks)
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
        sequence_figures=sequence_figures,
        ignored=Ignored,
    )
    return recorder
