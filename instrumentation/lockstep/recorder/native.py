"""Chooses the recorder: in C where it was compiled, else in Python; both do the same.

LOCKSTEP_NATIVE=off takes the one in Python. The C code knows no offset of the page: it asks for
each by a name, such as ``slot.steps``, ``row.bit.loss`` or ``code.sync``, and is told them from the
one table of the format.
"""

import os
from types import ModuleType

from lockstep.monitor.anomalies import FLAG
from lockstep.recorder.phases import CODE, code_of
from lockstep.recorder.recorder import Ignored, StepRecorder
from lockstep.recorder.rows import LENGTH_BITS, LOSSES, RecorderCallbacks, figures_of
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

try:
    from lockstep import _native
except ImportError:  # there was no compiler where it was installed
    _native = None  # type: ignore[assignment]  # the same, as a value

SWITCH = "LOCKSTEP_NATIVE"
compiled: ModuleType | None = None if os.environ.get(SWITCH) == "off" else _native


def places(rows: int) -> dict[str, int]:
    """Where everything of a page of so many rows is: words in slots, bytes in rows, bits, codes."""
    told = {f"slot.{field.name}": SLOT.word(field.name) for field in SLOT.fields}
    told |= {f"periodic.{field.name}": PERIODIC.word(field.name) for field in PERIODIC.fields}
    told |= {f"row.{name}": offset for name, offset in ROW.offsets.items()}
    told |= {f"slot.bit.{name}": bit for name, bit in SLOT.presence.items()}
    told |= {f"row.bit.{name}": bit for name, bit in ROW.presence.items()}
    told |= {f"flag.{name}": bit for name, bit in FLAG.items()}
    told |= {f"code.{name}": code for name, code in CODE.items()}
    told |= {f"at.slot.{number}": at for number, at in enumerate(SLOT_OFFSETS)}
    return told | {
        "row.bits.lengths": LENGTH_BITS,
        "at.heartbeat": HEARTBEAT_OFFSET,
        "at.ring": RING_OFFSET,
        "size.row": ROW.size,
        "size.slot": SLOT.size,
        "size.periodic": PERIODIC.size,
        "rows": rows,
        "losses": LOSSES,
    }


def new_recorder(page: PageWriter, callbacks: RecorderCallbacks) -> StepRecorder:
    """A recorder for a page."""
    if compiled is None:
        return StepRecorder(page, callbacks)
    recorder: StepRecorder = compiled.StepRecorder(
        file=page.file,
        slot=page.words,
        periodic=page.periodic.words,
        places=places(page.rows),
        buckets=STEP_BUCKETS,
        heartbeat=page.heartbeat_word,
        callbacks=callbacks,
        codes=CODE,
        kinds={kind: place for place, kind in enumerate(COLLECTIVE_KINDS)},
        code_of=code_of,
        bus_factor=bus_factor,
        figures_of=figures_of,
        ignored=Ignored,
    )
    return recorder
