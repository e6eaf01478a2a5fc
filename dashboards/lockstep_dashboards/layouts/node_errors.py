"""Rows about what fails on a node: Xids and memory errors."""

from lockstep_catalogue import Label, Metric, Unit, events, gpu, gpu_faults, gpu_pcie
from lockstep_catalogue.labels import (
    ACTION,
    AVAILABILITY,
    ECC,
    ECC_SCOPE,
    GPU,
    GPU_STATE,
    LOCATION,
    PCI_BUS_ID,
    RETIRED_BY,
    SRAM_UNIT,
    VERDICT,
)
from lockstep_catalogue.promql import one_of
from lockstep_catalogue.verdicts import GPU_HEALTH, GPU_REASON
from lockstep_dashboards.layouts.node_state import OF_GPUS, OF_NODE, ON_REQUEST, rate_per_gpu
from lockstep_dashboards.panel import Panel, Query, Row
from lockstep_dashboards.selection import MOST_ROWS, above_zero
from lockstep_dashboards.series_panels import column, table, time_series

NO_FAULT = "a healthy GPU has no such series"


def faults(
    metric: Metric, *labels: Label, title: str = "", otherwise: str, width: int = 8
) -> Panel:
    """A table of what a counter of each GPU has counted, without zeros."""
    return table(
        metric,
        above_zero(OF_GPUS.by("max", OF_GPUS.over_range("last", metric), *labels)),
        title=title,
        note="Counts that are not 0.",
        good="empty.",
        otherwise=otherwise,
        columns=(GPU, *labels),
        width=width,
        may_be_empty=NO_FAULT,
    )


def gpu_columns(
    title: str, first: Metric, cells: tuple[tuple[Metric, str], ...], good: str, otherwise: str
) -> Panel:
    """A table with a row for each GPU and a column for each gauge."""
    queries = (column(metric, OF_GPUS.gauge("max", metric), heading) for metric, heading in cells)
    return table(
        first,
        *queries,
        title=title,
        good=good,
        otherwise=otherwise,
        columns=(GPU,),
        may_be_empty=ON_REQUEST + ", or kinds of GPU that do not report it",
    )


def present(metric: Metric, *labels: Label, title: str, good: str, otherwise: str) -> Panel:
    """A table of states that hold now, one row a GPU and state."""
    return table(
        metric,
        Query(expression=f"{OF_GPUS.by('max', OF_GPUS.of(metric), *labels)} > 0"),
        title=title,
        good=good,
        otherwise=otherwise,
        columns=(GPU, *labels),
        width=8,
        may_be_empty="kinds of GPU that do not report it have none",
    )


def _xids() -> Panel:
    meaning = OF_NODE.by(
        "max",
        OF_NODE.over_range("last", events.GPU_XID_INFO),
        events.XID,
        events.XID_CLASS,
        events.REMEDY,
    )
    incidents = OF_NODE.by(
        "sum", OF_NODE.over_range("last", events.GPU_XID_INCIDENTS), PCI_BUS_ID, events.XID
    )
    newest = OF_NODE.by("max", OF_NODE.of(events.GPU_XID_LAST), PCI_BUS_ID, events.XID)
    counted = (
        f"topk({MOST_ROWS}, {incidents} * on (node, xid) group_left (xid_class, remedy) {meaning})"
    )
    return table(
        events.GPU_XID_INCIDENTS,
        column(events.GPU_XID_INCIDENTS, Query(expression=counted), "incidents"),
        column(events.GPU_XID_LAST, Query(expression=f"time() - {newest}"), "last", Unit.SECONDS),
        title="Xids and their remedies",
        good="empty; class application is the job's own.",
        otherwise="follow the remedy; docs/agent.md lists every number.",
        columns=(PCI_BUS_ID, events.XID, events.XID_CLASS, events.REMEDY),
        may_be_empty=NO_FAULT,
    )


ERRORS = Row(
    title="Errors",
    panels=(
        _xids(),
        table(
            GPU_HEALTH,
            Query(
                expression=OF_GPUS.by(
                    "max",
                    OF_GPUS.of(GPU_HEALTH, one_of(VERDICT, "degraded", "failed")),
                    VERDICT,
                    GPU_REASON,
                )
            ),
            title="Reasons of the verdicts",
            good="empty.",
            otherwise="docs/agent.md says what each reason means and what mends it.",
            columns=(GPU, VERDICT, GPU_REASON),
            may_be_empty=NO_FAULT,
        ),
        faults(
            gpu_faults.GPU_ECC_ERRORS,
            ECC,
            ECC_SCOPE,
            title="Memory errors",
            otherwise="uncorrected: reset the GPU; again within a month: replace it.",
        ),
        faults(
            gpu_faults.GPU_REMAPPED_ROWS,
            ECC,
            title="Remapped rows",
            otherwise="rows by uncorrected errors need a reset to take effect.",
        ),
        time_series(
            gpu_pcie.GPU_PCIE_REPLAYS,
            rate_per_gpu(gpu_pcie.GPU_PCIE_REPLAYS),
            per_second=True,
            good="0, or a few an hour.",
            otherwise="reseat the card or change the riser.",
            width=8,
        ),
    ),
)
MEMORY_FAULTS = Row(
    title="Memory faults in detail",
    collapsed=True,
    panels=(
        faults(
            gpu_faults.GPU_ECC_LOCATION_ERRORS,
            ECC,
            ECC_SCOPE,
            LOCATION,
            title="Memory errors by location",
            otherwise="SRAM errors are never remapped: many of them mean a new GPU.",
        ),
        faults(
            gpu_faults.GPU_SRAM_UNCORRECTED,
            SRAM_UNIT,
            title="Uncorrected SRAM errors",
            otherwise="above the threshold beside it the maker replaces the GPU.",
        ),
        faults(
            gpu_faults.GPU_RETIRED_PAGES,
            RETIRED_BY,
            title="Retired pages",
            otherwise="60 are the end of a GPU from before row remapping.",
        ),
        table(
            gpu_faults.GPU_REMAP_BANKS,
            Query(
                expression=OF_GPUS.by("max", OF_GPUS.of(gpu_faults.GPU_REMAP_BANKS), AVAILABILITY)
            ),
            title="Banks by spare rows",
            good="all at max.",
            otherwise="banks at low or none: the next uncorrected error cannot be remapped.",
            columns=(GPU, AVAILABILITY),
            width=8,
            may_be_empty=NO_FAULT,
        ),
        gpu_columns(
            "Flags of memory",
            gpu_faults.GPU_REMAP_PENDING,
            (
                (gpu_faults.GPU_REMAP_PENDING, "remap pending"),
                (gpu_faults.GPU_REMAP_FAILED, "remap failed"),
                (gpu_faults.GPU_RETIRED_PENDING, "page pending"),
                (gpu_faults.GPU_SRAM_THRESHOLD_EXCEEDED, "SRAM threshold exceeded"),
            ),
            "all 0.",
            "pending: reset the GPU; failed or exceeded: replace it.",
        ),
        present(
            gpu_faults.GPU_RECOVERY_ACTION,
            ACTION,
            title="Actions that the driver demands",
            good="none on every GPU.",
            otherwise="do what it says before the next job starts here.",
        ),
        present(
            gpu.GPU_STATE_INFO,
            GPU_STATE,
            title="States of the driver's answers",
            good="ok on every GPU.",
            otherwise="lost: restart the node; hung: read the kernel log.",
        ),
        table(
            events.NVSWITCH_INCIDENTS,
            above_zero(
                OF_NODE.by(
                    "max",
                    OF_NODE.over_range("last", events.NVSWITCH_INCIDENTS),
                    PCI_BUS_ID,
                    events.SXID,
                    events.SXID_FATAL,
                )
            ),
            title="Faults of NVSwitches",
            good="empty.",
            otherwise="fatal ones need a restart of the node; all jobs on it are affected.",
            columns=(PCI_BUS_ID, events.SXID, events.SXID_FATAL),
            width=8,
            may_be_empty="a node without NVSwitches, or without faults of them, has none",
        ),
    ),
)
