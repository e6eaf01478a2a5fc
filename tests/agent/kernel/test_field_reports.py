"""Kernel logs of the field, rebuilt: an incident an event, a page only where one has to act."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep_agent.collectors.node.kernel_log import KernelLog
from lockstep_agent.state_file import StateFile
from lockstep_catalogue import incidents
from lockstep_catalogue.incidents import XID_TABLE

from ..fake_tree import FIXTURES

CASES: dict[str, dict[str, Any]] = yaml.safe_load(
    (FIXTURES / "field-reports/kernel-logs.yaml").read_text()
)
COUNTERS = (
    incidents.GPU_XID_INCIDENTS, incidents.NVSWITCH_INCIDENTS, incidents.NIC_INCIDENTS,
    incidents.HOST_INCIDENTS,
)  # fmt: skip
# What GpuNodeFatalError counts beside the fatal Xids.
BROKEN = {"machine_check", "memory_uncorrected", "pcie_uncorrected", "hard_lockup", "fatal"}
HARMLESS = ("13", "31", "43", "45", "63", "92", "94", "145-nonfatal")


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
    last = {labels[-1] for labels in counts}
    fatal = {each for each in last if each in XID_TABLE and XID_TABLE[each].severity == "fatal"}
    assert bool(fatal | (last & BROKEN)) == case["pages"]


@pytest.mark.parametrize("number", HARMLESS)
def test_what_a_program_did_or_the_driver_corrected_asks_for_no_drain(number: str) -> None:
    assert XID_TABLE[number].severity != "fatal"
    assert XID_TABLE[number].remedy in {"none", "restart_job", "follow_companion"}
