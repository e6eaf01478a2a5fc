"""Every query of every board finds data on a simulated cluster, for each choice of variables."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from simulated_cluster import fill, simulated
from simulated_cluster.boards_on_cluster import check_boards, num_opening_queries

from lockstep_dashboards.layout import BOARDS

from .test_boards_lint import MAX_OPENING_QUERIES

pytestmark = [pytest.mark.server, pytest.mark.release, pytest.mark.timeout(300)]


def test_no_panel_is_empty_none_errs_and_none_floods(
    tmp_path: Path, serve_prometheus: Callable[[Path], AbstractContextManager[str]]
) -> None:
    config = tmp_path / "prometheus.yaml"
    config.write_text("global: {}\n", encoding="utf-8")
    cluster = simulated(end=time.time(), range_seconds=1200)
    with serve_prometheus(config) as url:
        fill(url, cluster)
        findings = check_boards(url, cluster)
    problems = {
        (uid, finding.panel): finding.problem
        for uid, found in findings.items()
        for finding in found
        if finding.problem
    }
    assert problems == {}
    assert all(num_opening_queries(board) <= MAX_OPENING_QUERIES for board in BOARDS.values())
