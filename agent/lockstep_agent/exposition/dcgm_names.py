"""Names of dcgm-exporter for our readings, and ours for its: one table for both directions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep_agent.collector import AnyReading, Reading
from lockstep_catalogue import Kind, Metric, gpu
from lockstep_prometheus.scrape_text import escape, write_number

_MIB, _MEGA, _MILLI, _PERCENT, _NANO = 1 << 20, 1e6, 1e-3, 1e-2, 1e-9


@dataclass(frozen=True, slots=True)
class Twin:
    """One field of DCGM and our series of the same meaning.

    Attributes:
        field: name that dcgm-exporter gives it.
        label_values: those of our series behind index and UUID of the GPU.
        factor: our value is that of the field times this.
    """

    field: str
    metric: Metric
    label_values: tuple[str, ...] = ()
    factor: float = 1.0


TWINS = (
    Twin("DCGM_FI_DEV_SM_CLOCK", gpu.GPU_CLOCK, ("sm",), _MEGA),
    Twin("DCGM_FI_DEV_MEM_CLOCK", gpu.GPU_CLOCK, ("mem",), _MEGA),
    Twin("DCGM_FI_DEV_GPU_TEMP", gpu.GPU_TEMPERATURE, ("core",)),
    Twin("DCGM_FI_DEV_MEMORY_TEMP", gpu.GPU_TEMPERATURE, ("memory",)),
    Twin("DCGM_FI_DEV_POWER_USAGE", gpu.GPU_POWER),
    Twin("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", gpu.GPU_ENERGY, (), _MILLI),
    Twin("DCGM_FI_DEV_POWER_MGMT_LIMIT", gpu.GPU_POWER_LIMIT, ("enforced",)),
    Twin("DCGM_FI_DEV_POWER_VIOLATION", gpu.GPU_THROTTLE_SECONDS, ("sw_power_cap",), _NANO),
    Twin("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", gpu.GPU_PCIE_REPLAYS),
    Twin("DCGM_FI_DEV_GPU_UTIL", gpu.GPU_UTILIZATION, (), _PERCENT),
    Twin("DCGM_FI_DEV_MEM_COPY_UTIL", gpu.GPU_MEMORY_COPY, (), _PERCENT),
    Twin("DCGM_FI_DEV_FB_FREE", gpu.GPU_MEMORY_FREE, (), _MIB),
    Twin("DCGM_FI_DEV_FB_USED", gpu.GPU_MEMORY_USED, (), _MIB),
    Twin("DCGM_FI_DEV_FB_TOTAL", gpu.GPU_MEMORY_TOTAL, (), _MIB),
    Twin("DCGM_FI_DEV_FB_RESERVED", gpu.GPU_MEMORY_RESERVED, (), _MIB),
    Twin("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", gpu.GPU_ECC_ERRORS, ("corrected", "volatile")),
    Twin("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", gpu.GPU_ECC_ERRORS, ("uncorrected", "volatile")),
    Twin("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", gpu.GPU_ECC_ERRORS, ("corrected", "aggregate")),
    Twin("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", gpu.GPU_ECC_ERRORS, ("uncorrected", "aggregate")),
    Twin("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", gpu.GPU_REMAPPED_ROWS, ("corrected",)),
    Twin("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", gpu.GPU_REMAPPED_ROWS, ("uncorrected",)),
    Twin("DCGM_FI_DEV_ROW_REMAP_FAILURE", gpu.GPU_REMAP_FAILED),
    Twin("DCGM_FI_DEV_ROW_REMAP_PENDING", gpu.GPU_REMAP_PENDING),
    Twin("DCGM_FI_PROF_GR_ENGINE_ACTIVE", gpu.GPU_GRAPHICS_ACTIVE),
    Twin("DCGM_FI_PROF_SM_ACTIVE", gpu.GPU_SM_ACTIVE),
    Twin("DCGM_FI_PROF_SM_OCCUPANCY", gpu.GPU_SM_OCCUPANCY),
    Twin("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", gpu.GPU_TENSOR_ACTIVE, ("any",)),
    Twin("DCGM_FI_PROF_DRAM_ACTIVE", gpu.GPU_DRAM_ACTIVE),
    Twin("DCGM_FI_PROF_PCIE_TX_BYTES", gpu.GPU_PCIE_RATE, ("transmit",)),
    Twin("DCGM_FI_PROF_PCIE_RX_BYTES", gpu.GPU_PCIE_RATE, ("receive",)),
)
TWIN_BY_FIELD = {twin.field: twin for twin in TWINS}


def render_dcgm(readings: Iterable[AnyReading], node: str) -> bytes:
    """A scrape as dcgm-exporter would serve it, of the fields that have a twin here.

    The field of the last Xid is left out: it is a gauge that never returns to 0, and no count.
    """
    values: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], float]] = {}
    for reading in readings:
        if isinstance(reading, Reading):
            series = values.setdefault((reading.metric.name, reading.labels[2:]), {})
            series[reading.labels[:2]] = reading.value
    labels = _labels(readings, node)
    text = "".join(line for twin in TWINS for line in _family(twin, values, labels))
    return text.encode()


def _family(
    twin: Twin,
    values: dict[tuple[str, tuple[str, ...]], dict[tuple[str, ...], float]],
    labels: dict[tuple[str, ...], str],
) -> Iterator[str]:
    by_gpu = values.get((twin.metric.name, twin.label_values), {})
    if not by_gpu:
        return
    kind = "counter" if twin.metric.kind is Kind.COUNTER else "gauge"
    yield f"# HELP {twin.field} {twin.metric.help}\n# TYPE {twin.field} {kind}\n"
    for gpu_and_uuid, value in by_gpu.items():
        if gpu_and_uuid in labels:
            yield f"{twin.field}{{{labels[gpu_and_uuid]}}} {write_number(value / twin.factor)}\n"


def _labels(readings: Iterable[AnyReading], node: str) -> dict[tuple[str, ...], str]:
    """The text of the labels of each GPU, by index and UUID."""
    infos = {each.labels[:2]: each.labels for each in readings if each.metric is gpu.GPU_INFO}
    driver = next((each.labels[0] for each in readings if each.metric is gpu.GPU_DRIVER_INFO), "")
    texts = {}
    for key, (index, uuid, model, _, address, minor, *_) in infos.items():
        pairs = {
            "gpu": index,
            "UUID": uuid,
            # dcgm-exporter writes a PCI domain of eight digits; ours has four.
            "pci_bus_id": f"0000{address}".upper() if address else "",
            "device": f"nvidia{minor or index}",
            "modelName": model,
            "Hostname": node,
            "DCGM_FI_DRIVER_VERSION": driver,
        }
        texts[key] = ",".join(f'{name}="{escape(value)}"' for name, value in pairs.items())
    return texts
