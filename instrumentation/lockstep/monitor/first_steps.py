"""Finds in the first steps what is not seen of a loop and says it once; later ones cost nothing."""

import logging
from typing import Any

from lockstep.recorder.phases import DATA, FORWARD, OTHER, STEP_SLICE, SYNC
from lockstep_records.page.layout import COLLECTIVE_KINDS, SLOT
from lockstep_records.page.replicas import unseen_bits, unseen_in
from lockstep_records.page.writer import PageWriter

log = logging.getLogger("lockstep")
_PHASE_SECONDS = SLOT.word("phase_seconds")
_COLLECTIVES, _TRANSFERS = SLOT.word("collectives"), COLLECTIVE_KINDS.index("send_recv")
_COUNTS = (SLOT.word("tokens"), SLOT.word("samples"))
# A share that is worth a line; below a millisecond a step it is Python's own time between phases.
_MIN_UNPHASED_RATIO, _MIN_UNPHASED_SECONDS = 0.2, 1e-3


class FirstSteps:
    """Judges what a page has of the first steps.

    Attributes:
        judged_at_step: when all is said.
        search: ``SubmoduleSearch`` of the models that ``attach`` was given; None without any.
        unseen: what is known beforehand not to be seen, by its name in ``UNSEEN``.
        is_over: whether all is said.
    """

    judged_at_step = 20

    def __init__(self, page: PageWriter) -> None:
        self._page = page
        self.search: Any = None
        self.unseen: set[str] = set()
        self.is_over = False

    def inspect_steps(self, steps: int) -> None:
        """Called at the ends of some of the first steps, the twentieth or a later one at last."""
        seconds = self._page.floats[_PHASE_SECONDS : _PHASE_SECONDS + STEP_SLICE.stop]
        # A device may not have passed the first steps yet.
        if self.is_over or not seconds[OTHER]:
            return
        if self.search is not None:
            self.search.inspect_steps(steps, has_forward=seconds[FORWARD] > 0)
        if steps >= self.judged_at_step:
            self.is_over = True
            ran = self.search is None or seconds[FORWARD] > 0
            ran = (self.search is not None and self.search.end()) or ran
            self._say(seconds, steps, ran=ran)

    def _say(self, seconds: "memoryview[float]", steps: int, *, ran: bool) -> None:
        slots, identity = self._page.periodic, self._page.identity
        total = sum(seconds[STEP_SLICE])
        unphased = seconds[OTHER] / total if total else 0.0
        names = set(self.unseen)
        if not any(seconds[DATA:OTHER]):
            names.add("phases")
        else:
            is_large = seconds[OTHER] > steps * _MIN_UNPHASED_SECONDS
            if unphased > _MIN_UNPHASED_RATIO and is_large:
                names.add("work" if seconds[DATA] else "data")
            if identity.world_size > 1 and not seconds[SYNC]:
                names.add("waits")
        if not ran:
            names.add("models")
        others = self._page.words[_COLLECTIVES : _COLLECTIVES + len(COLLECTIVE_KINDS)].tolist()
        transfers = others.pop(_TRANSFERS)
        if transfers and not any(others) and dict(identity.mesh) == {"dp": identity.rank}:
            names.add("stages")
        # Only the last stage of a pipeline has a loss.
        if not self._page.now.knows("loss") and "pp" not in dict(identity.mesh):
            names.add("loss")
        if not any(self._page.words[word] for word in _COUNTS):
            names.add("samples")
        slots.know("unseen", unseen_bits(names))
        slots.know("unphased_ratio", unphased)
        if identity.rank == 0:
            fields = {"unseen": unseen_bits(names), "unphased_ratio": unphased}
            for unseen in unseen_in(fields):
                log.warning("%s", unseen)
