"""What no kernel should write costs series, never a collector or the scrape."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CASES = 120


def _fuzz() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "agent_fuzz.py"
    spec = importlib.util.spec_from_file_location("agent_fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", sorted(_fuzz().KINDS))
def test_spoiled_input_breaks_neither_a_collector_nor_the_exposition(kind: str) -> None:
    assert _fuzz().run(kind, CASES, seed=20261121, promtool_every=0) > CASES
