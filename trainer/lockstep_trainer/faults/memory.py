"""Host memory that runs out: allocations up to a limit on the address space."""

import resource
from pathlib import Path

import torch

from lockstep_trainer.faults.fault import Fault
from lockstep_trainer.faults.kind import Kind, Target, Value, act_before_step

_MIB = 1 << 20


def _run_out(fault: Fault, _target: Target) -> None:
    """Allocates until torch raises what it raises when the system has no memory left."""
    headroom_bytes = int(fault.values["mib"]) * _MIB
    # The hard limit stays: without root it could not be raised again.
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + headroom_bytes, hard))
    try:
        blocks = [torch.ones(_MIB, dtype=torch.uint8)]
        while True:
            # Blocks grow, so that a limit of gigabytes is reached in few allocations.
            blocks.append(torch.ones(len(blocks) * _MIB, dtype=torch.uint8))
    finally:  # the handlers of the error need memory too
        blocks = []
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


# A limit on the address space needs no rights; a cgroup's would need root and ends in signal 9.
KIND = Kind(
    name="oom",
    in_step=act_before_step(_run_out),
    values=(Value(name="mib", low=1, high=1 << 20, default=64, sort="whole number"),),
)
