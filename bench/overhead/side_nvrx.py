"""NVRx's side: its detector's sections, with a stub for CUPTI, which needs a GPU."""

import os
import sys
from contextlib import AbstractContextManager
from types import ModuleType

import torch
from pairs import in_pairs, tell
from steps import Small


class _NoProfiler:
    """The profiler that it makes at its start, empty: the real one asks for a driver."""

    def __init__(self, **_: object) -> None: ...
    def initialize(self) -> None: ...
    def shutdown(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


def _stub_cupti() -> None:
    stub = ModuleType("nvrx_cupti_module")
    stub.CuptiProfiler = _NoProfiler  # type: ignore[attr-defined]  # made here
    sys.modules["nvrx_cupti_module"] = stub


def main() -> None:
    """Measures, and tells the pairs."""
    _stub_cupti()
    from nvidia_resiliency_ext.straggler import Detector  # noqa: PLC0415  # after its stub

    torch.set_num_threads(1)
    Detector.initialize(node_name="bench")
    small = Small.fresh()

    def span(name: str) -> AbstractContextManager[object]:
        section: AbstractContextManager[object] = Detector.detection_section(name)
        return section

    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    tell({"step": in_pairs(small.step, lambda: small.step_in(span), pairs=pairs, num_steps=300)})


if __name__ == "__main__":
    main()
