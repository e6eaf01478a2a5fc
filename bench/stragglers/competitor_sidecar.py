"""TraceML and NVRx in the same loop as Lockstep, each as its own documentation says.

TraceML has its launcher, a block around the step and a wrapped loader; its verdict is in the
summary that its launcher writes. NVRx has a section a phase and its report, with its CUPTI part
stubbed: that needs a GPU.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.distributed as dist
import traceml_ai as traceml
from no_cupti import stub_cupti
from plan import NVRX_FILE
from sidecar import Sidecar
from torch import Tensor, nn


class CompetitorSidecar(Sidecar):
    """TraceML and NVRx in one loop.

    Args:
        start: first step of the trial; NVRx's report is of the steps from there.
        root: folder that NVRx's verdict is written into.
    """

    def __init__(self, start: int, root: Path) -> None:
        stub_cupti()
        from nvidia_resiliency_ext.straggler import Detector  # noqa: PLC0415  # after its stub

        torch.cuda.synchronize = lambda device=None: None  # noqa: ARG005  # its report asks for it
        traceml.init()
        self._detector = Detector
        self._detector.initialize(node_name="bench")
        self._start, self._root = start, root

    def batches(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        """Fetches in NVRx's section ``data`` and in TraceML's wrapper."""
        return traceml.wrap_dataloader_fetch(self._fetch_in_section(batches))  # type: ignore[no-any-return]  # untyped

    def _fetch_in_section(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        for number in range(2**31):
            if number == self._start:
                self._detector.generate_report()  # resets its statistics
            try:
                with self.section("data"):
                    batch = next(batches)
            except StopIteration:
                return
            yield batch

    def step(self, model: nn.Module) -> AbstractContextManager[object]:
        """TraceML's step."""
        return traceml.trace_step(model)  # type: ignore[no-any-return]  # untyped

    def section(self, name: str) -> AbstractContextManager[object]:
        """NVRx's section."""
        section: AbstractContextManager[object] = self._detector.detection_section(name)
        return section

    def close(self) -> None:
        """Writes the ranks that NVRx names, by section, at its default threshold."""
        report = self._detector.generate_report()
        if dist.get_rank() == 0:
            stragglers = report.identify_stragglers()["straggler_sections_relative"]
            ranks_by_section = {
                name: sorted(straggler.rank for straggler in ranks)
                for name, ranks in stragglers.items()
            }
            (self._root / NVRX_FILE).write_text(json.dumps(ranks_by_section), encoding="utf-8")
        self._detector.shutdown()
