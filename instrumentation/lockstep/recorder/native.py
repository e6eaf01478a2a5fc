"""Chooses the recorder: in C where it was compiled, else in Python; both do the same.

LOCKSTEP_NATIVE=off takes the one in Python. The C code contains no offset of the page: it looks up
each by a name, such as ``slot.steps``, ``row.bit.loss`` or ``code.sync``, in a table that is made
here from the one definition of the format.
"""

import importlib
import logging
import os
from types import ModuleType

from lockstep.recorder.lengths import figures_of
from lockstep.recorder.phases import CODE, code_of
from lockstep.recorder.recorder import Ignored, StepRecorder
from lockstep.recorder.row_flags import FLAG
from lockstep.recorder.rows import LENGTH_BITS, LOSSES, RecorderCallbacks, Rows
from lockstep.recorder.run_queue import RUN_QUEUE_EVERY_NS
from lockstep_records.bus import bus_factor
from lockstep_records.page.layout import (
    COLLECTIVE_KINDS,
    HEARTBEAT_OFFSET,
    PERIODIC,
    RING_OFFSET,
    ROW,
    SLOT,
    SLOT_OFFSETS,
    STEP_BUCKETS,
)
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
    if not _has_all_methods(module.StepRecorder):
        log.warning("lockstep._native is of older sources and not used; run make install")
        return None
    return module


def _has_all_methods(recorder: type) -> bool:
    """Whether the recorder in C has what the one in Python has; one left in a checkout may not."""
    methods = {**vars(Rows), **vars(StepRecorder)}
    return all(hasattr(recorder, name) for name in methods if not name.startswith("_"))


compiled = _import_compiled()


def layout_table(rows: int) -> dict[str, int]:
    """The layout of a page of so many rows: words in slots, bytes in rows, bits, codes, sizes."""
    table = {f"slot.{field.name}": SLOT.word(field.name) for field in SLOT.fields}
    table |= {f"periodic.{field.name}": PERIODIC.word(field.name) for field in PERIODIC.fields}
    table |= {f"row.{name}": offset for name, offset in ROW.offsets.items()}
    table |= {f"slot.bit.{name}": bit for name, bit in SLOT.presence.items()}
    table |= {f"periodic.bit.{name}": bit for name, bit in PERIODIC.presence.items()}
    table |= {f"row.bit.{name}": bit for name, bit in ROW.presence.items()}
    table |= {f"flag.{name}": bit for name, bit in FLAG.items()}
    table |= {f"code.{name}": code for name, code in CODE.items()}
    table |= {f"offset.slot.{number}": offset for number, offset in enumerate(SLOT_OFFSETS)}
    return table | {
        "row.bits.lengths": LENGTH_BITS,
        "offset.heartbeat": HEARTBEAT_OFFSET,
        "offset.ring": RING_OFFSET,
        "size.row": ROW.size,
        "size.slot": SLOT.size,
        "size.periodic": PERIODIC.size,
        "rows": rows,
        "losses": LOSSES,
        "run_queue_every": RUN_QUEUE_EVERY_NS,
        "kinds": len(COLLECTIVE_KINDS),
    }


def new_recorder(page: PageWriter, callbacks: RecorderCallbacks) -> StepRecorder:
    """A recorder that writes a page, in C where it was compiled."""
    if compiled is None:
        return StepRecorder(page, callbacks)
    recorder: StepRecorder = compiled.StepRecorder(
        file=page.file,
        slot=page.words,
        periodic=page.periodic.words,
        layout=layout_table(page.rows),
        buckets=STEP_BUCKETS,
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
