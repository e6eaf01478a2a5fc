"""Field values in one call: a batch that learns which of its fields the driver lacks."""

import struct
from collections.abc import Iterable

from lockstep_agent.sources.nvml.device import Gpu
from lockstep_agent.sources.nvml.values import value_of

Field = tuple[int, int]  # field id, scope: a link, a kind of power, or 0
ALL_LINKS = 0xFFFF_FFFF
_ANSWER = struct.Struct("24xII8s")  # kind of value, return code, value


class _Batch:
    """Some fields and the room for their answers, made once: pynvml makes it for each call."""

    def __init__(self, gpu: Gpu, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.room = (gpu.nvml.c_nvmlFieldValue_t * len(fields))(*fields)


class Fields:
    """Some fields of one GPU, read in one call.

    What the driver lacks is asked once and then left out. A field that is refused in the batch is
    asked alone before it is given up: on some drivers one unknown field makes others vanish.
    """

    def __init__(self, gpu: Gpu, wanted: Iterable[Field]) -> None:
        self._gpu = gpu
        self._wanted = tuple(wanted)
        self._batch = _Batch(gpu, ())
        self._generation = 0

    def read(self) -> dict[Field, float]:
        """The values by field; a field without an answer is left out.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        _ = self._gpu.handle
        if self._generation == self._gpu.generation:
            return self._ask(self._batch)[0] if self._batch.fields else {}
        values = self._probe(self._wanted)
        self._generation = self._gpu.generation
        return values

    def _probe(self, wanted: tuple[Field, ...]) -> dict[Field, float]:
        values, refused = self._ask(_Batch(self._gpu, wanted))
        alone = {
            field: self._ask(_Batch(self._gpu, (field,)))
            for field in (refused if len(wanted) > 1 else ())
        }
        for told, _ in alone.values():
            values.update(told)
        given_up = {field for field, (_, bad) in alone.items() if bad} if alone else set(refused)
        self._batch = _Batch(self._gpu, tuple(one for one in wanted if one not in given_up))
        return values

    def _ask(self, batch: _Batch) -> tuple[dict[Field, float], list[Field]]:
        """Values by field, and the fields that the driver says it lacks."""
        if self._gpu.call("nvmlDeviceGetFieldValues", len(batch.fields), batch.room):
            return self._halves(batch.fields)
        values: dict[Field, float] = {}
        refused: list[Field] = []
        answers = _ANSWER.iter_unpack(batch.room)
        for field, (kind, code, raw) in zip(batch.fields, answers, strict=True):
            if code == 0:
                value = value_of(kind, raw)
                if value is not None:
                    values[field] = value
                continue
            self._gpu.raise_when_lost(code)
            if self._gpu.is_unsupported(code):
                refused.append(field)
        return values, refused

    def _halves(self, fields: tuple[Field, ...]) -> tuple[dict[Field, float], list[Field]]:
        """Asks again in halves, down to the field for which the whole call fails."""
        if len(fields) == 1:
            return {}, list(fields)
        middle = len(fields) // 2
        values, refused = self._ask(_Batch(self._gpu, fields[:middle]))
        more, also = self._ask(_Batch(self._gpu, fields[middle:]))
        return {**values, **more}, [*refused, *also]
