"""Corrupted trees, kernel logs, pages and kubelet answers; LOCKSTEP_FUZZ=25000 tries so many."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lockstep_agent.exposition.text import render

from . import fuzz_events, fuzz_trees

KINDS = {
    "kernel_logs": fuzz_events.kernel_logs,
    "pages": fuzz_events.pages,
    "pod_resources": fuzz_events.pod_resources,
    "trees": fuzz_trees.trees,
}
CASES = int(os.environ.get("LOCKSTEP_FUZZ", "15"))
read_families: Any = text_string_to_metric_families


@pytest.fixture(name="nodes", autouse=True, scope="module")
def _nodes() -> Iterator[None]:
    with closing(fuzz_trees.NODES):
        yield


@pytest.mark.timeout(60 + CASES)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_corrupted_input_breaks_no_collector_and_no_exposition(root: Path, kind: str) -> None:
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
