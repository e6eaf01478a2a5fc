"""Forty corrupted trees, kernel logs, pages and kubelet answers; the bench runs 100,000."""

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "node_agent"))
fuzz: Any = importlib.import_module("agent_fuzz")
CASES = 40


@pytest.mark.parametrize("kind", sorted(fuzz.KINDS))
def test_corrupted_input_breaks_neither_a_collector_nor_the_exposition(kind: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201  # to reproduce a failure
    assert fuzz.run(kind, CASES, seed, by_promtool=False) > 0
