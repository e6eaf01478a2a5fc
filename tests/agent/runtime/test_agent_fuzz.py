"""Corrupted trees, kernel logs, pages and kubelet answers; LOCKSTEP_FUZZ=25000 tries so many."""

import importlib
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lockstep_agent.exposition.text import render

sys.path.insert(0, str(Path(__file__).parents[3] / "bench" / "node_agent"))
events: Any = importlib.import_module("agent_fuzz_events")
trees: Any = importlib.import_module("agent_fuzz_trees")
KINDS = {
    "kernel_logs": events.kernel_logs,
    "pages": events.pages,
    "pod_resources": events.pod_resources,
    "trees": trees.trees,
}
CASES = int(os.environ.get("LOCKSTEP_FUZZ", "15"))
read_families: Any = text_string_to_metric_families


@pytest.fixture(name="nodes", autouse=True, scope="module")
def _nodes() -> Iterator[None]:
    with closing(trees.NODES):
        yield


@pytest.mark.timeout(60 + CASES)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_corrupted_input_breaks_neither_a_collector_nor_the_exposition(
    root: Path, kind: str
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    num_readings = 0
    for case in range(CASES):
        print(f"seed {seed}, case {case}")  # noqa: T201  # to reproduce a failure
        folder = root / "case"
        folder.mkdir()
        readings = list(KINDS[kind](random.Random(f"{seed}/{kind}/{case}"), folder))
        exposition = render(readings, 0)
        assert all(family.samples for family in read_families(exposition.openmetrics.decode()))
        num_readings += len(readings)
        shutil.rmtree(folder)
    assert num_readings > 0
