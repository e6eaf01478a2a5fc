"""Field values in one call: a batch that learns which of its fields the driver lacks."""

import struct
from collections.abc import Iterable

from lockstep_agent.sources.nvml.device import Gpu
from lockstep_agent.sources.nvml.values import unpack_value

Field = tuple[int, int]  # field id, scope: a link, a kind of power, or 0
ALL_LINKS = 0xFFFF_FFFF  # scope of the NVLink traffic fields that sums over all links
_ANSWER = struct.Struct("24xII8s")  # kind of value, return code, value


class _Batch:
    """Fields and the buffer of their values, allocated once."""

    def __init__(self, gpu: Gpu, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        # pynvml allocates and fills a new array for each call: 39 us for 47 fields, against 0.5 us
        self.buffer = (gpu.nvml.c_nvmlFieldValue_t * len(fields))(*fields)


class Fields:
    """Some fields of one GPU, as pairs of field id and scope, read in one call.

    A field that the driver lacks is queried once and then left out. A field that is rejected in the
    batch is queried by itself before it is given up.
    """

    def __init__(self, gpu: Gpu, fields: Iterable[Field]) -> None:
        self._gpu = gpu
        self._fields = tuple(fields)
        self._batch = _Batch(gpu, ())
        self._generation = 0

    def read(self) -> dict[Field, float]:
        """The values by field, in the driver's units; a field without an answer is left out.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        self._gpu.ensure_handle()
        if self._generation == self._gpu.generation:
            return self._query(self._batch)[0] if self._batch.fields else {}
        values = self._probe(self._fields)
        self._generation = self._gpu.generation
        return values

    def _probe(self, fields: tuple[Field, ...]) -> dict[Field, float]:
        values, rejected = self._query(_Batch(self._gpu, fields))
        # one unsupported field makes others of the batch vanish on GB200
        # (https://github.com/NVIDIA/DCGM/issues/581), so each gets a call of its own
        retries = {
            field: self._query(_Batch(self._gpu, (field,)))
            for field in (rejected if len(fields) > 1 else ())
        }
        for retried_values, _ in retries.values():
            values.update(retried_values)
        if retries:
            unsupported = {field for field, (_, refused) in retries.items() if refused}
        else:
            unsupported = set(rejected)
        supported = tuple(field for field in fields if field not in unsupported)
        self._batch = _Batch(self._gpu, supported)
        return values

    def _query(self, batch: _Batch) -> tuple[dict[Field, float], list[Field]]:
        """Values by field, and the fields that the driver says it lacks."""
        if self._gpu.call("nvmlDeviceGetFieldValues", len(batch.fields), batch.buffer):
            return self._bisect(batch.fields)
        values: dict[Field, float] = {}
        rejected: list[Field] = []
        answers = _ANSWER.iter_unpack(batch.buffer)
        for field, (kind, code, raw) in zip(batch.fields, answers, strict=True):
            if code == 0:
                value = unpack_value(kind, raw)
                if value is not None:
                    values[field] = value
                continue
            self._gpu.raise_when_lost(code)
            if self._gpu.is_unsupported(code):
                rejected.append(field)
        return values, rejected

    def _bisect(self, fields: tuple[Field, ...]) -> tuple[dict[Field, float], list[Field]]:
        """Queries halves, down to the field for which the entire call fails."""
        if len(fields) == 1:
            return {}, list(fields)
        half = len(fields) // 2
        first_values, first_rejected = self._query(_Batch(self._gpu, fields[:half]))
        second_values, second_rejected = self._query(_Batch(self._gpu, fields[half:]))
        return {**first_values, **second_values}, [*first_rejected, *second_rejected]
