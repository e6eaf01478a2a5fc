"""dcgm-exporter in both directions: its scrape under our names, our readings under its names."""

from pathlib import Path

import pytest

from lockstep_agent.collector import Reading
from lockstep_agent.collectors.gpu.dcgm_exporter import DcgmExporter, is_blank, parse_samples
from lockstep_agent.exposition.dcgm_names import TWINS, render_dcgm
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_catalogue import Metric, gpu

RECORDED = Path(__file__).parents[2] / "fixtures" / "dcgm" / "metrics-tesla-t4.prom"
T4 = ("0", "GPU-20c56d28-0da5-6d26-a36a-e7af1ce2586e")


def imported_values(text: str) -> dict[tuple[Metric, tuple[str, ...]], float]:
    readings = DcgmExporter("", lambda _: parse_samples(text)).collect()
    return {(reading.metric, reading.labels): reading.value for reading in readings}


def test_a_recorded_scrape_is_imported_in_base_units() -> None:
    values = imported_values(RECORDED.read_text())
    assert values[gpu.GPU_CLOCK, (*T4, "sm")] == 300e6
    assert values[gpu.GPU_POWER, T4] == 8.969
    assert values[gpu.GPU_ENERGY, T4] == pytest.approx(128996.013)
    assert values[gpu.GPU_MEMORY_FREE, T4] == 15109 << 20
    assert values[gpu.GPU_TEMPERATURE, (*T4, "core")] == 25


@pytest.mark.parametrize(
    "text", ["9223372036854775792", "9223372036854775794", "2147483632", "140737488355328", "NaN"]
)
def test_a_blank_value_is_absent(text: str) -> None:
    row = f'DCGM_FI_DEV_MEMORY_TEMP{{gpu="0",UUID="GPU-1"}} {text}\n'
    assert imported_values(row) == {}
    assert is_blank(float(text))
    assert imported_values(row.replace(text, "55"))


def test_the_last_xid_and_rows_of_instances_are_not_imported() -> None:
    assert imported_values('DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1"} 79\n') == {}
    row = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",GPU_I_ID="3"} 40\n'
    assert imported_values(row) == {}


def test_our_readings_survive_the_names_of_dcgm(options: Options) -> None:
    readings = Sampler(CollectorRuntime(options), 1).sample().readings
    exported = {
        (reading.metric, reading.labels): reading.value
        for reading in readings
        if isinstance(reading, Reading)
    }
    text = render_dcgm(readings, "node-7").decode()
    assert 'Hostname="node-7"' in text
    assert 'modelName="NVIDIA H100 80GB HBM3"' in text
    assert 'pci_bus_id="00000000:10:00.0"' in text
    imported = imported_values(text)
    assert len(imported) > 3 * len(TWINS) / 2
    for key, value in imported.items():
        assert value == pytest.approx(exported[key]), key
