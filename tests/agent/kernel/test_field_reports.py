"""Kernel logs of the field, rebuilt: an incident an event."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import incidents

from ..fake_tree import FIXTURES

CASES: dict[str, dict[str, Any]] = yaml.load(
    (FIXTURES / "field-reports/kernel-logs.yaml").read_text(), yaml.CSafeLoader
)
COUNTERS = (
    incidents.GPU_XID_INCIDENTS, incidents.NVSWITCH_INCIDENTS, incidents.NIC_INCIDENTS,
    incidents.HOST_INCIDENTS,
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_log_of_the_field_counts_each_event_once(tmp_path: Path, name: str) -> None:
    case, path = CASES[name], tmp_path / "kmsg"
    path.write_text(case["log"] + "\n")
    log = KernelLog({"kernel": path}, tmp_path, tmp_path, StateFile(tmp_path / "state.json"))
    counts = {
        reading.labels: reading.value
        for reading in log.collect()
        if reading.metric in COUNTERS and reading.value
    }
    assert {" ".join(filter(None, labels)): value for labels, value in counts.items()} == case[
        "counts"
    ]
