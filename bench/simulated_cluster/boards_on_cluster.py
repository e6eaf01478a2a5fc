"""Runs every query of every board on the simulated cluster: none is empty, and none errs.

``PYTHONPATH=bench python -m simulated_cluster.boards_on_cluster --nodes 128 --minutes 60``;
it starts a Prometheus of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import yaml

from lockstep_cli.small_server import free_port
from lockstep_dashboards.command import Finding, check_board
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.panel import Board
from lockstep_dashboards.scope import Scope
from lockstep_prometheus.client import Prometheus

from . import fill
from .cluster import CLUSTER_NAME as SIMULATED
from .cluster import Cluster, simulated

_READY_SECONDS = 120
MAX_QUERY_SECONDS = 1.0

# This cluster has no time before its own, and no job of it ends: the incidents have both.
_LACKING: Mapping[str, frozenset[int]] = {
    "Projects by class": frozenset({1}),
    "Jobs that ended in the range": frozenset({0}),
}
Chosen = Mapping[str, tuple[str, ...]]


def choices(board: Board, cluster: Cluster) -> list[Chosen]:
    """Values of the board's variables: everything, then each job or node that has something."""
    names = {variable.name for variable in board.variables}
    if "job_id" in names:
        return [{"job_id": (job.job_id,)} for job in cluster.jobs]
    if "gpu" in names:
        [restarting] = [job.nodes[0] for job in cluster.jobs if job.restarts]
        nodes = [{"node": (node,)} for node in (*cluster.sick, cluster.nodes[0], restarting)]
        return [*nodes, nodes[0] | {"gpu": ("3",), "cluster": (SIMULATED,)}]
    if "node" in names:
        return [{}, {"node": (cluster.sick[0],), "device": ("mlx5_3",)}]
    return [{}, {"cluster": (SIMULATED,)}]


def _merge(findings: Sequence[Sequence[Finding]]) -> list[Finding]:
    """What several checks of one board with different values of its variables find.

    A query has no series when it has none with any of the values; any error of one is an error.
    """
    return [
        replace(
            max(each, key=lambda finding: finding.num_series),
            seconds=max(finding.seconds for finding in each),
            error="; ".join(sorted({finding.error for finding in each if finding.error})),
            empty=frozenset.intersection(*(finding.empty for finding in each)),
        )
        for each in zip(*findings, strict=True)
    ]


def num_opening_queries(board: Board) -> int:
    """Number of queries that opening a board costs: panels, annotations and variables."""
    of_panels = sum(len(panel.queries) for panel in board.opened_panels)
    return of_panels + len(board.annotations) + len(board.variables)


def check_boards(url: str, cluster: Cluster) -> dict[str, list[Finding]]:
    """The findings of every board, over all choices of its variables."""
    end = float(cluster.times[-1])
    range_seconds = end - float(cluster.times[0])
    with Prometheus(url, timeout_seconds=300) as server:
        return {
            board.uid: [
                replace(finding, empty=finding.empty - _LACKING.get(finding.panel, frozenset()))
                for finding in _merge(
                    [
                        check_board(
                            board,
                            Scope(
                                end=end,
                                range_seconds=range_seconds,
                                scrape_seconds=cluster.scrape_seconds,
                                chosen=chosen,
                            ),
                            server,
                            is_full=True,
                        )
                        for chosen in choices(board, cluster)
                    ]
                )
            ]
            for board in BOARDS.values()
        }


@contextmanager
def prometheus(
    folder: Path, *flags: str, config: Mapping[str, object] | None = None
) -> Iterator[str]:
    """An empty Prometheus that takes remote writes; yields its address."""
    path, address = folder / "prometheus.yaml", f"127.0.0.1:{free_port()}"
    path.write_text(yaml.safe_dump(config or {"global": {}}), encoding="utf-8")
    command = [
        "prometheus",
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=60d",
        *flags,
    ]
    # Prometheus 3 collects its garbage so by itself.
    environment = {**os.environ, "GOGC": "75"}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stderr=log, env=environment) as server,
    ):
        try:
            deadline = time.monotonic() + _READY_SECONDS
            while not _is_ready(f"http://{address}"):
                assert server.poll() is None, folder / "log"
                assert time.monotonic() < deadline, folder / "log"
                time.sleep(0.1)
            yield f"http://{address}"
        finally:
            server.terminate()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", trust_env=False).is_success
    except httpx.HTTPError:
        return False


def report(findings: Mapping[str, list[Finding]]) -> bool:
    """Prints a line a board, each problem and the slowest queries; whether all is well."""
    good = True
    for board in BOARDS.values():
        found = findings[board.uid]
        problems = [finding for finding in found if finding.problem]
        slowest = max(found, key=lambda finding: finding.seconds)
        num_queries = sum(len(finding.queries) for finding in found)
        print(
            f"{board.uid}: {len(board.panels)} panels, {len(board.opened_panels)} open, "
            f"{num_queries} queries, {num_opening_queries(board)} to open; "
            f"slowest {slowest.seconds:.2f} s ({slowest.panel}); {len(problems)} problems"
        )
        for finding in found:
            if finding.seconds > MAX_QUERY_SECONDS:
                print(f"  {finding.panel}: {finding.seconds:.2f} s")
        for finding in problems:
            print(f"  {finding.panel}: {finding.problem} {sorted(finding.empty)}")
            print("    " + "\n    ".join(finding.queries))
        good &= not problems
    return good


def main() -> None:
    """Fills a Prometheus, checks the boards, and exits with 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--minutes", type=int, default=20)
    options = parser.parse_args()
    cluster = simulated(
        num_nodes=options.nodes, end=time.time(), range_seconds=60 * options.minutes
    )
    with tempfile.TemporaryDirectory() as folder, prometheus(Path(folder)) as url:
        started = time.monotonic()
        number = fill(url, cluster)
        print(f"{number} samples of {options.nodes} nodes in {time.monotonic() - started:.0f} s")
        sys.exit(0 if report(check_boards(url, cluster)) else 1)


if __name__ == "__main__":
    main()
