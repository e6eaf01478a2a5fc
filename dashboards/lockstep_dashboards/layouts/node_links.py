"""The row of the node board about NVLink and PCIe."""

from lockstep_catalogue import gpu_pcie, nvlink, pcie
from lockstep_catalogue.fabric_labels import AER_ERROR, LINK_END, SEVERITY
from lockstep_catalogue.labels import (
    BER,
    CHECK,
    CLIQUE,
    DIRECTION,
    FABRIC,
    FABRIC_STATE,
    GPU,
    LINK,
    LINK_ERROR,
    LINK_STATE,
    PCI_BUS_ID,
    PCIE_ERROR,
)
from lockstep_dashboards.layouts.node_errors import NO_FAULT, faults, gpu_columns, present
from lockstep_dashboards.layouts.node_state import OF_GPUS, OF_NODE, rate_per_gpu
from lockstep_dashboards.panel import Row
from lockstep_dashboards.selection import above_zero
from lockstep_dashboards.series_panels import table, time_series

_NO_NVLINK = "GPUs without NVLink have none"

LINKS = Row(
    title="NVLink and PCIe",
    collapsed=True,
    panels=(
        time_series(
            nvlink.NVLINK_LINKS,
            OF_GPUS.gauge(
                "min", nvlink.NVLINK_LINKS, LINK_STATE, legend="GPU {{gpu}} {{link_state}}"
            ),
            title="NVLinks by state",
            good="all active, as many on each GPU.",
            otherwise="an inactive link slows the collectives of all ranks: reset the GPU.",
            width=8,
            may_be_empty=_NO_NVLINK,
        ),
        time_series(
            nvlink.NVLINK_SPEED_MIN,
            OF_GPUS.gauge("min", nvlink.NVLINK_SPEED_MIN, legend="GPU {{gpu}}"),
            title="Slowest NVLink",
            good="the same on all GPUs.",
            otherwise="reset the GPU; a link that stays slow is hardware.",
            width=8,
            may_be_empty=_NO_NVLINK,
        ),
        time_series(
            nvlink.NVLINK_BYTES,
            rate_per_gpu(nvlink.NVLINK_BYTES, DIRECTION),
            title="NVLink payload per second",
            per_second=True,
            good="alike on all GPUs of a job.",
            otherwise="compare the links' states and speeds beside it.",
            width=8,
            may_be_empty=_NO_NVLINK,
        ),
        faults(
            nvlink.NVLINK_ERRORS,
            LINK_ERROR,
            title="NVLink errors",
            otherwise="replays and recoveries that grow steadily: clean or replace the connector.",
        ),
        faults(
            nvlink.NVLINK_WORST_ERRORS,
            LINK,
            title="Worst NVLink of each GPU",
            otherwise="one link with most of the errors is the one to mend.",
        ),
        table(
            nvlink.NVLINK_BIT_ERROR,
            OF_GPUS.gauge("max", nvlink.NVLINK_BIT_ERROR, BER),
            title="Bit error ratio of the worst NVLink",
            good="below 1e-12.",
            otherwise="an effective ratio above it costs retransmissions on every step.",
            unit="sci",
            columns=(GPU, BER),
            width=8,
            may_be_empty=_NO_NVLINK,
        ),
        present(
            nvlink.NVLINK_FABRIC_STATE,
            FABRIC_STATE,
            title="Joining the NVLink fabric",
            good="completed on every GPU.",
            otherwise="restart the fabric manager; failed ones cannot talk to the others.",
        ),
        table(
            nvlink.NVLINK_FABRIC_UNHEALTHY,
            above_zero(OF_GPUS.by("max", OF_GPUS.of(nvlink.NVLINK_FABRIC_UNHEALTHY), CHECK)),
            title="Failed checks of the NVLink fabric",
            good="empty.",
            otherwise="drain the node and read the fabric manager's log.",
            columns=(GPU, CHECK),
            width=8,
            may_be_empty=NO_FAULT,
        ),
        table(
            nvlink.NVLINK_FABRIC_INFO,
            OF_GPUS.gauge("max", nvlink.NVLINK_FABRIC_INFO, CLIQUE, FABRIC),
            title="NVLink fabric and clique",
            good="one fabric and clique for all GPUs of a domain.",
            otherwise="a GPU of another clique was left out of its partition.",
            columns=(GPU, CLIQUE, FABRIC),
            width=8,
            may_be_empty="GPUs outside an NVLink fabric have none",
        ),
        gpu_columns(
            "PCIe links of the GPUs",
            gpu_pcie.GPU_PCIE_GENERATION,
            (
                (gpu_pcie.GPU_PCIE_GENERATION, "generation"),
                (gpu_pcie.GPU_PCIE_GENERATION_MAX, "highest"),
                (gpu_pcie.GPU_PCIE_GENERATION_DEVICE_MAX, "highest of the GPU"),
                (gpu_pcie.GPU_PCIE_WIDTH, "lanes"),
                (gpu_pcie.GPU_PCIE_WIDTH_MAX, "most lanes"),
            ),
            "as many lanes as supported; under load the highest generation.",
            "fewer lanes: reseat the card.",
        ),
        time_series(
            gpu_pcie.GPU_PCIE_BYTES,
            rate_per_gpu(gpu_pcie.GPU_PCIE_BYTES, DIRECTION),
            title="PCIe traffic per second",
            per_second=True,
            good="alike on all GPUs of a job.",
            otherwise="much of it with little progress: data is copied through the host.",
        ),
        faults(
            gpu_pcie.GPU_PCIE_ERRORS,
            PCIE_ERROR,
            title="Errors on the GPUs' PCIe links",
            otherwise="correctable ones in thousands, or any fatal: reseat, then replace.",
        ),
        table(
            pcie.PCIE_AER_ERRORS,
            above_zero(
                OF_NODE.by(
                    "max",
                    OF_NODE.over_range("last", pcie.PCIE_AER_ERRORS),
                    PCI_BUS_ID,
                    LINK_END,
                    SEVERITY,
                )
            ),
            title="Errors by end of the link",
            good="empty.",
            otherwise="both ends err: the slot; one end: that device.",
            columns=(PCI_BUS_ID, LINK_END, SEVERITY),
            width=8,
            may_be_empty=NO_FAULT,
        ),
        table(
            pcie.PCIE_AER_KINDS,
            above_zero(
                OF_NODE.by(
                    "max",
                    OF_NODE.over_range("last", pcie.PCIE_AER_KINDS),
                    PCI_BUS_ID,
                    SEVERITY,
                    AER_ERROR,
                )
            ),
            title="Errors of links by kind",
            good="empty.",
            otherwise="receiver errors and bad packets are signal quality.",
            columns=(PCI_BUS_ID, SEVERITY, AER_ERROR),
            width=8,
            may_be_empty=NO_FAULT,
        ),
    ),
)
