"""Stands in for CUPTI, which needs a GPU, so that NVRx's sections run on any machine."""

import sys
from types import ModuleType


class _NoProfiler:
    """The profiler that NVRx makes at its start, empty: the real one asks for a driver."""

    def __init__(self, **_: object) -> None: ...
    def initialize(self) -> None: ...
    def shutdown(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def reset(self) -> None: ...
    def get_stats(self) -> dict[str, object]:
        """No kernel ran."""
        return {}


def stub_cupti() -> None:
    """Puts the stand-in where NVRx will import its extension from; call it before."""
    stub = ModuleType("nvrx_cupti_module")
    stub.CuptiProfiler = _NoProfiler  # type: ignore[attr-defined]  # made here
    sys.modules["nvrx_cupti_module"] = stub
