"""A few hundred spoiled logs, pages and kubelet answers; bench/agent_fuzz_events.py makes more."""

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
fuzz: Any = importlib.import_module("agent_fuzz_events")


@pytest.mark.parametrize("kind", sorted(fuzz.KINDS))
def test_spoiled_input_breaks_nothing(kind: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # to make a failure again
    assert fuzz.run(kind, 150, seed, promtool_every=0) > 0
