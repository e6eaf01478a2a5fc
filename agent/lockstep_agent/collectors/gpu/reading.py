"""A collector of one GPU out of a function that reads it."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from lockstep_agent.collector import Reading, Tier, present
from lockstep_agent.sources.nvml import Fields, Gpu
from lockstep_agent.sources.nvml.fields import Field
from lockstep_catalogue import Metric

Values = Mapping[Field, float]
Read = Callable[[Gpu, Values], Iterator[Reading]]


class GpuCollector:
    """Reads one GPU by a function, which gets the values of its fields too."""

    def __init__(
        self, gpu: Gpu, name: str, tier: Tier, fields: tuple[Field, ...], read: Read
    ) -> None:
        self.name, self.tier = name, tier
        self._gpu, self._read = gpu, read
        self._fields = Fields(gpu, fields) if fields else None

    def collect(self) -> Iterator[Reading]:
        """The readings of this moment."""
        return self._read(self._gpu, self._fields.read() if self._fields else {})


def gpu_collector(
    name: str, tier: Tier, fields: Iterable[Field] = ()
) -> Callable[[Read], Callable[[Gpu], GpuCollector]]:
    """Makes a function the collector of a GPU; one call reads its fields before each run."""
    batch = tuple(fields)
    return lambda read: lambda gpu: GpuCollector(gpu, name, tier, batch, read)


def unscoped(*fields: int) -> Iterator[Field]:
    """Fields of the GPU itself, without a scope."""
    return ((field, 0) for field in fields)


def read_by_label(
    metric: Metric,
    labels: tuple[str, ...],
    fields: Mapping[str, int],
    values: Values,
    *,
    factor: float = 1,
    scope: int = 0,
) -> Iterator[Reading]:
    """A reading for each field that has a value; its name is the last label."""
    for name, field in fields.items():
        yield from present(metric, (*labels, name), values.get((field, scope)), factor)
