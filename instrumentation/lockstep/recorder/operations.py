"""Records the operations inside sampled steps: reported one by one, or derived from phases.

A step that is not sampled costs one test of an attribute an operation. While a step is sampled,
the heartbeat of the monitor's recorder is replaced, so that every boundary between phases is seen,
and the instrumentation points are listened to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from lockstep.guard import Parts
from lockstep.recorder import operation_listeners as operations_tap
from lockstep.recorder.interface import StepRecorder
from lockstep.recorder.operation_listeners import Operation
from lockstep.recorder.phases import BACKWARD, FORWARD, OPTIMIZER, OTHER, SYNC
from lockstep_records.files.operations import (
    CODES,
    FROM_PHASES,
    KINDS,
    NAMES,
    ON_DEVICE,
    UNKNOWN,
    OperationWriter,
)

# A phase and the operation it is. Synchronising gradients bears the name that the published traces
# give to it, whether the ranks reduce and scatter or reduce to all.
_PHASE_OPERATIONS = {
    FORWARD: CODES["forward-compute"],
    BACKWARD: CODES["backward-compute"],
    SYNC: CODES["grads-sync"],
    OPTIMIZER: CODES["optimizer"],
}
_LOCAL = frozenset({CODES["forward-compute"], CODES["backward-compute"]})
_KIND = {CODES["grads-sync"]: KINDS.index("all_reduce")}
_KIND_CODES = {name: code for code, name in enumerate(KINDS)}
_MOST_BOUNDARIES = 4096
_TOO_LARGE = 1 << 15


@dataclass(frozen=True, slots=True)
class PhaseOperation:
    """An operation derived from a phase of the host, and the boundary with which it begins."""

    boundary: int
    operation: int
    sequence: int
    chunk: int
    kind: int


class OperationRecorder:
    """Writes the operations of sampled steps into the ring file of the rank.

    Args:
        recorder: of the rank; its heartbeat is replaced while a step is sampled.
        stage: pipeline stage of the rank, the chunk of what is derived from phases.
        parts: of the monitor; what is recorded here runs inside the loop's calls.

    Attributes:
        sampling: whether the running step is recorded.
        refused: operations reported under a name that no published trace has.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        writer: OperationWriter,
        stage: int = 0,
        *,
        parts: Parts | None = None,
    ) -> None:
        self._recorder, self._writer, self._stage = recorder, writer, stage
        self._parts = parts or Parts()
        self._heartbeat = recorder.heartbeat
        self._boundaries: list[tuple[int, int]] = []
        self._sequence = [0] * len(NAMES)
        self._step = 0
        self._has_collective = False
        self.sampling = False
        self.refused = 0

    def record(  # noqa: PLR0917  # called in the hot path by position
        self,
        op: str,
        start_ns: int,
        end_ns: int,
        micro_batch: int | None = None,
        chunk: int | None = None,
        kind: str | None = None,
    ) -> None:
        """Records one operation of the running step.

        Args:
            op: its name in the published traces, such as ``forward-compute``.
            start_ns: monotonic nanoseconds of its start; of a collective, of the own arrival.
            end_ns: monotonic nanoseconds of its end.
            micro_batch: number of the micro-batch.
            chunk: number of the model chunk in the whole model, which is the pipeline stage.
            kind: kind of collective.
        """
        if not self.sampling:
            return
        # An unknown name is counted and not written: replay knows the published names only.
        code = CODES.get(op)
        if code is None:
            self.refused += 1
            return
        self._write(
            code,
            start_ns,
            end_ns,
            _small(micro_batch),
            _small(chunk),
            _KIND_CODES.get(kind or "", UNKNOWN),
            0,
        )

    def _write(  # noqa: PLR0917  # the same
        self, code: int, start: int, end: int, micro_batch: int, chunk: int, kind: int, flags: int
    ) -> None:
        sequence = self._sequence[code]
        self._sequence[code] = sequence + 1
        self._writer.append(
            self._step,
            code,
            start,
            end,
            sequence,
            micro_batch=micro_batch,
            chunk=chunk,
            kind=kind,
            flags=flags,
        )

    def begin(self, step: int, now_ns: int) -> None:
        """Records the step that begins now."""
        self._step = step
        self._sequence = [0] * len(NAMES)
        self._boundaries = [(now_ns, OTHER)]
        self._has_collective = False
        # The recorder stays as it is: only a sampled step pays for seeing its boundaries.
        self._recorder.heartbeat = self
        operations_tap.tap = self._listen
        self.sampling = True

    def _listen(self, operation: Operation) -> None:
        self._parts.run("operations", self._ingest, operation)

    def _ingest(self, operation: Operation) -> None:
        self._has_collective = self._has_collective or operation.kind is not None
        self.record(*operation)

    def __setitem__(self, index: int, word: int) -> None:
        """Stands in for the heartbeat: passes the word on, and notes the boundary."""
        self._heartbeat[index] = word
        self._parts.run("operations", self._note_boundary, word >> 4, word & 15)

    def _note_boundary(self, now_ns: int, phase: int) -> None:
        boundaries = self._boundaries
        if phase != boundaries[-1][1] and len(boundaries) < _MOST_BOUNDARIES:
            boundaries.append((now_ns, phase))

    def end(self, now_ns: int) -> None:
        """Ends the step: operations that were not reported are derived from its phases."""
        self._stop()
        reported = frozenset(code for code, count in enumerate(self._sequence) if count)
        ends = [start for start, _ in self._boundaries[1:]] + [now_ns]
        derived = []
        for boundary, ((start, phase), end) in enumerate(zip(self._boundaries, ends, strict=True)):
            code = _PHASE_OPERATIONS.get(phase)
            if code is None or code in reported or (phase == SYNC and self._has_collective):
                continue
            sequence = self._sequence[code]
            chunk = UNKNOWN if code == CODES["optimizer"] else self._stage
            kind = _KIND.get(code, UNKNOWN)
            micro_batch = sequence if code in _LOCAL else UNKNOWN
            self._write(code, start, end, micro_batch, chunk, kind, FROM_PHASES)
            derived.append(PhaseOperation(boundary, code, sequence, chunk, kind))
        phases = [phase for _, phase in self._boundaries]
        write = partial(self._write_device_step, self._step, phases, derived)
        self._recorder.call_when_passed(
            lambda times_ns, seen: self._parts.run("operations", write, times_ns, seen)
        )

    def _write_device_step(
        self,
        step: int,
        phases: Sequence[int],
        operations: Sequence[PhaseOperation],
        times_ns: Sequence[int],
        device_phases: Sequence[int],
    ) -> None:
        """Writes a sampled step as the device went through it, where it saw the same phases."""
        # An arrival has an event of its own within its phase.
        changes = [
            position
            for position, phase in enumerate(device_phases)
            if not position or phase != device_phases[position - 1]
        ]
        # On the host a step ends by entering the phase other; on the device that is its last event.
        seen = [*(device_phases[position] for position in changes), OTHER]
        if seen[: len(phases)] != list(phases):
            return  # a wait was left out: the step had too many
        boundaries_ns = [times_ns[position] for position in changes] + [times_ns[-1]]
        for operation in operations:
            start_ns, end_ns = boundaries_ns[operation.boundary : operation.boundary + 2]
            self._write_device(step, operation, start_ns, end_ns)

    def _write_device(
        self, step: int, operation: PhaseOperation, start_ns: int, end_ns: int
    ) -> None:
        code, sequence = operation.operation, operation.sequence
        self._writer.append(
            step,
            code,
            start_ns,
            end_ns,
            sequence,
            micro_batch=sequence if code in _LOCAL else UNKNOWN,
            chunk=operation.chunk,
            kind=operation.kind,
            flags=FROM_PHASES | ON_DEVICE,
        )

    def close(self) -> None:
        """Closes the ring; the file stays."""
        self._stop()
        self._writer.close()

    def _stop(self) -> None:
        self.sampling = False
        self._recorder.heartbeat = self._heartbeat
        operations_tap.tap = None


def _small(number: int | None) -> int:
    """The number as a row can hold it."""
    return number if number is not None and 0 <= number < _TOO_LARGE else UNKNOWN
