"""Metrics of the PCIe links of GPUs and network adapters, by the kernel."""

from lockstep_catalogue.fabric_labels import (
    AER_ERROR,
    DISTANCE,
    ENDPOINT,
    LINK_END,
    NUMA_NODE,
    PORT_ABOVE,
    RAIL,
    SEVERITY,
)
from lockstep_catalogue.labels import DEVICE, PCI_BUS_ID
from lockstep_catalogue.metric import Metric

_DEVICE = "/sys/bus/pci/devices/PCI_BUS_ID"

PCIE_INFO = Metric(
    name="lockstep_pcie_device_info",
    labels=(PCI_BUS_ID, ENDPOINT, DEVICE, PORT_ABOVE, NUMA_NODE),
    help="A GPU or network adapter and the port above it, always 1.",
    source=f"{_DEVICE}: class, infiniband, net, numa_node and its place in the tree",
)
PCIE_SPEED = Metric(
    name="lockstep_pcie_link_speed_transfers_per_second",
    labels=(PCI_BUS_ID,),
    help="Present speed of the link, in transfers per second and lane.",
    source=f"{_DEVICE}/current_link_speed",
)
PCIE_LANES = Metric(
    name="lockstep_pcie_link_lanes",
    labels=(PCI_BUS_ID,),
    help="Present lanes of the link.",
    source=f"{_DEVICE}/current_link_width",
)
# Against both ends: a card in a narrow slot is as it should be, a link below both is a fault.
PCIE_RATIO = Metric(
    name="lockstep_pcie_link_capability_ratio",
    labels=(PCI_BUS_ID,),
    help="Speed times lanes of the link, as a share of what both of its ends support.",
    source=f"{_DEVICE}/current_link_speed, max_link_speed and width, and of the port above",
)
# The kernel's own counters, also of adapters and of the port above; a hung driver does not stop
# them.
PCIE_AER_ERRORS = Metric(
    name="lockstep_pcie_aer_errors_total",
    labels=(PCI_BUS_ID, LINK_END, SEVERITY),
    help="Errors that an end of the link reported; the port above appears with its first error.",
    source=f"{_DEVICE}/aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal: the total",
)
PCIE_AER_KINDS = Metric(
    name="lockstep_pcie_aer_kind_errors_total",
    labels=(PCI_BUS_ID, LINK_END, SEVERITY, AER_ERROR),
    help="PCIe errors by kind, as an end of the link reported them; absent before the first.",
    source=f"{_DEVICE}/aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal",
)
AFFINITY = Metric(
    name="lockstep_fabric_affinity_info",
    labels=(PCI_BUS_ID, DEVICE, DISTANCE, RAIL),
    help="Adapters nearest to the GPU at this PCI address, always 1.",
    source="common bridges and memory nodes in /sys/bus/pci/devices",
)
