"""``lockstep top --cluster`` over a real Prometheus that holds what the shipped rules record."""

from contextlib import closing

import pytest
from alerts.situations.expand import shipped
from alerts.situations.ruler import EPOCH, Ruler, prometheus
from alerts.situations_second.world import World
from rich.console import Console

from alerts.situations.fleet import build
from lockstep_reports.top.cluster import ClusterSnapshot, ClusterSource


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> ClusterSnapshot:
    world = World({name: {"count": 2} for name in "ABC"}, idle=1)
    world.hang("B", 20).straggler("C", 20)
    series = build(world.situation("cluster", 1), 60.0, 3600.0)
    with (
        prometheus(tmp_path_factory.mktemp("prometheus")) as url,
        closing(Ruler(url, 60.0, 3600.0)) as ruler,
    ):
        ruler.load(world.scraped(series))
        ruler.firing(shipped(60, tmp_path_factory.mktemp("rules")).rule_files)
        with closing(ClusterSource(url, now=lambda: EPOCH + 3600.0)) as source:
            return source.poll()


@pytest.mark.server
@pytest.mark.timeout(240)
def test_the_job_that_loses_most_stands_first_with_who_and_why(snapshot: ClusterSnapshot) -> None:
    assert [row.job_id for row in snapshot.rows] == ["B", "C", "A"]
    hung, late, well = snapshot.rows
    assert (hung.lost_gpus, hung.gpus, hung.pages) == (16, 16, ("JobNotProgressing",))
    assert hung.verdict.startswith("the others wait for rank 1 on n3, in backward, for ")
    assert late.verdict.startswith("rank ")
    assert 0 < late.lost_gpus < 16
    assert (well.lost_gpus, well.verdict, well.pages, well.owner) == (0, "", (), "atlas")


@pytest.mark.server
@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_the_table_fits_the_terminal(snapshot: ClusterSnapshot, width: int) -> None:
    console = Console(width=width, height=24)
    with console.capture() as captured:
        console.print(snapshot.view(None))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    assert "3 jobs, 48 GPUs" in captured.get() or width < 80
