"""Field values in one call: a batch that learns which of its fields the driver lacks."""

from collections.abc import Iterable
from typing import Any

from lockstep_agent.sources.nvml.device import Gpu

Field = tuple[int, int]  # field id, scope: a link, a kind of power, or 0
ALL_LINKS = 0xFFFF_FFFF
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Fields:
    """Some fields of one GPU, read in one call.

    What the driver lacks is asked once and then left out. A field that is refused in the batch is
    asked alone before it is given up: on some drivers one unknown field makes others vanish.
    """

    def __init__(self, gpu: Gpu, wanted: Iterable[Field]) -> None:
        self._gpu = gpu
        self._wanted = tuple(wanted)
        self._asked: tuple[Field, ...] = ()
        self._generation = 0

    def read(self) -> dict[Field, float]:
        """The values by field; a field without an answer is left out.

        Raises:
            GpuLostError: the GPU is lost or needs a reset.
        """
        _ = self._gpu.handle
        if self._generation == self._gpu.generation:
            return self._ask(self._asked)[0] if self._asked else {}
        values = self._probe(self._wanted)
        self._generation = self._gpu.generation
        return values

    def _probe(self, wanted: tuple[Field, ...]) -> dict[Field, float]:
        values, refused = self._ask(wanted)
        alone = {field: self._ask((field,)) for field in refused} if len(wanted) > 1 else {}
        for told, _ in alone.values():
            values.update(told)
        given_up = {field for field, (_, bad) in alone.items() if bad} if alone else set(refused)
        self._asked = tuple(field for field in wanted if field not in given_up)
        return values

    def _ask(self, fields: tuple[Field, ...]) -> tuple[dict[Field, float], list[Field]]:
        """Values by field, and the fields that the driver says it lacks."""
        answers = self._call(fields)
        if answers is None:
            return self._halves(fields)
        values: dict[Field, float] = {}
        refused: list[Field] = []
        for field, answer in zip(fields, answers, strict=True):
            if answer.nvmlReturn == 0:
                if 0 <= answer.valueType < len(_MEMBERS):
                    values[field] = getattr(answer.value, _MEMBERS[answer.valueType])
                continue
            self._gpu.raise_when_lost(answer.nvmlReturn)
            if self._gpu.is_unsupported(answer.nvmlReturn):
                refused.append(field)
        return values, refused

    def _call(self, fields: tuple[Field, ...]) -> Any:
        nvml = self._gpu.nvml
        try:
            return nvml.nvmlDeviceGetFieldValues(self._gpu.handle, fields)
        except nvml.NVMLError as error:
            self._gpu.raise_when_lost(error.value)
            return None

    def _halves(self, fields: tuple[Field, ...]) -> tuple[dict[Field, float], list[Field]]:
        """Asks again in halves, down to the field for which the whole call fails."""
        if len(fields) == 1:
            return {}, list(fields)
        middle = len(fields) // 2
        values, refused = self._ask(fields[:middle])
        more, also = self._ask(fields[middle:])
        return {**values, **more}, [*refused, *also]
