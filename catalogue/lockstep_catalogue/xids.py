"""The table of Xids: name, class, severity and first remedy of each.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog) and the
numbers in the open kernel module of driver 595. A number that is not here is counted all the same.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Xid:
    """One number.

    Attributes:
        kind: a value of the label ``xid_class``.
        severity: a value of the label ``xid_severity``.
        remedy: a value of the label ``remedy``.
    """

    number: int
    name: str
    kind: str
    severity: str
    remedy: str

    @property
    def of_a_process(self) -> bool:
        """Whether each affected process counts as an incident of its own."""
        return self.kind == "application"


XIDS = (
    Xid(8, "GPU stopped processing", "application", "error", "restart_job"),
    Xid(11, "invalid or corrupted push buffer", "application", "error", "restart_job"),
    Xid(13, "graphics engine exception", "application", "error", "restart_job"),
    Xid(31, "GPU memory page fault", "application", "error", "restart_job"),
    Xid(32, "invalid or corrupted push buffer stream", "application", "error", "restart_job"),
    Xid(38, "driver firmware error", "information", "notice", "follow_companion"),
    Xid(39, "copy engine exception", "application", "error", "restart_job"),
    Xid(40, "copy engine exception", "application", "error", "restart_job"),
    Xid(41, "copy engine exception", "application", "error", "restart_job"),
    Xid(43, "GPU stopped processing", "information", "error", "restart_job"),
    Xid(44, "graphics engine fault during context switch", "information", "error", "restart_job"),
    Xid(45, "preemptive cleanup after earlier errors", "information", "notice", "follow_companion"),
    Xid(46, "GPU stopped processing", "hardware", "fatal", "reset_gpu"),
    Xid(48, "double-bit memory error", "memory", "fatal", "reset_gpu"),
    Xid(54, "auxiliary power is not connected", "bus", "fatal", "check_hardware"),
    Xid(62, "internal micro-controller halt", "hardware", "fatal", "reset_gpu"),
    Xid(63, "row remapping or page retirement recorded", "memory", "notice", "none"),
    Xid(64, "row remapping or page retirement failed", "memory", "fatal", "reset_gpu"),
    Xid(66, "illegal access by driver", "information", "notice", "none"),
    Xid(67, "illegal access by driver", "information", "notice", "none"),
    Xid(69, "graphics engine class error", "application", "error", "restart_job"),
    Xid(74, "NVLink error", "nvlink", "fatal", "check_link"),
    Xid(78, "vGPU start error", "firmware", "error", "contact_support"),
    Xid(79, "GPU has fallen off the bus", "bus", "fatal", "restart_node"),
    Xid(80, "corrupted data sent to GPU", "application", "error", "restart_job"),
    Xid(92, "high rate of single-bit memory errors", "information", "notice", "none"),
    Xid(93, "non-fatal violation of provisioned InfoROM", "information", "notice", "none"),
    Xid(94, "contained memory error", "application", "error", "restart_job"),
    Xid(95, "uncontained memory error", "memory", "fatal", "reset_gpu"),
    Xid(109, "context switch timeout", "hardware", "fatal", "reset_gpu"),
    Xid(110, "security fault", "hardware", "fatal", "reset_gpu"),
    Xid(119, "GSP does not answer", "firmware", "fatal", "reset_gpu"),
    Xid(120, "GSP error", "firmware", "fatal", "reset_gpu"),
    Xid(121, "C2C link error, corrected", "information", "notice", "none"),
    Xid(122, "SPI read failed", "firmware", "error", "contact_support"),
    Xid(123, "SPI write failed", "firmware", "error", "contact_support"),
    Xid(124, "SPI erase failed", "firmware", "error", "contact_support"),
    Xid(125, "InfoROM cannot be read", "firmware", "error", "contact_support"),
    Xid(136, "link training failed", "nvlink", "fatal", "reset_gpu"),
    Xid(137, "NVLink privilege error", "information", "error", "follow_companion"),
    Xid(140, "unrecovered memory error", "memory", "fatal", "reset_gpu"),
    Xid(141, "fatal fault of a bus interface", "information", "notice", "follow_companion"),
    Xid(142, "reserved; ask NVIDIA", "firmware", "error", "contact_support"),
    Xid(143, "GPU initialisation failed", "hardware", "fatal", "reset_gpu"),
    Xid(144, "NVLink SAW error", "nvlink", "fatal", "check_link"),
    Xid(145, "NVLink RLW error", "nvlink", "fatal", "check_link"),
    Xid(146, "NVLink TLW error", "nvlink", "fatal", "check_link"),
    Xid(147, "NVLink TREX error", "nvlink", "fatal", "check_link"),
    Xid(148, "NVLink NVLPW_CTRL error", "nvlink", "fatal", "check_link"),
    Xid(149, "NVLink NETIR error", "nvlink", "fatal", "check_link"),
    Xid(150, "NVLink MSE error", "nvlink", "fatal", "check_link"),
    Xid(151, "key rotation error", "firmware", "error", "restart_job"),
    Xid(154, "recovery action changed", "firmware", "error", "follow_companion"),
    Xid(155, "NVLink software-defined error", "nvlink", "fatal", "reset_gpu"),
    Xid(156, "resource retirement event", "hardware", "fatal", "reset_gpu"),
    Xid(157, "resource retirement failed", "information", "notice", "contact_support"),
    Xid(158, "GPU fatal timeout", "hardware", "fatal", "reset_gpu"),
    Xid(159, "CHI non-data error", "firmware", "error", "contact_support"),
    Xid(160, "channel retirement event", "information", "notice", "none"),
    Xid(161, "channel retirement failed", "information", "notice", "none"),
    Xid(162, "power smoothing: hardware cannot", "firmware", "notice", "contact_support"),
    Xid(163, "power smoothing: not calibrated", "firmware", "notice", "contact_support"),
    Xid(164, "power smoothing: ramp limits reached", "firmware", "notice", "contact_support"),
    Xid(165, "power smoothing: energy storage", "firmware", "notice", "contact_support"),
    Xid(166, "secure NVLink error", "nvlink", "error", "contact_support"),
    Xid(167, "PCIe fatal timeout", "bus", "fatal", "restart_node"),
    Xid(168, "errors in protected memory", "memory", "error", "contact_support"),
    Xid(169, "SEC2 halt", "firmware", "fatal", "reset_gpu"),
    Xid(170, "secure NVLink interrupt", "nvlink", "error", "contact_support"),
    Xid(171, "uncorrectable DRAM error", "memory", "fatal", "reset_gpu"),
    Xid(172, "uncorrectable SRAM error", "memory", "fatal", "reset_gpu"),
    Xid(173, "fatal C2C error", "nvlink", "fatal", "reset_gpu"),
    Xid(175, "memory subsystem fault", "memory", "fatal", "restart_node"),
    Xid(176, "PCIe fault, corrected", "bus", "notice", "check_hardware"),
)
XID_BY_NUMBER = {xid.number: xid for xid in XIDS}
PRECREATED_XIDS = (48, 64, 74, 79, 95, 119, 140)
"""Fatal and common: exported as 0 for every GPU, so that the first incident is an increase."""
