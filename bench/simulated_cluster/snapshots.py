"""How long a board takes to ask for, to draw and to photograph, and how large its page is.

`python bench/simulated_cluster/snapshots.py --prometheus URL --from -30m [--job JOB]`, over any
Prometheus with data, such as the one that bench/simulated_cluster fills.
"""

import argparse
import tempfile
import time
from pathlib import Path

from lockstep_dashboards.opening import open_board
from lockstep_dashboards.panel import Board
from lockstep_dashboards.scope import Scope, parse_range
from lockstep_dashboards.snapshot.answers import ask
from lockstep_dashboards.snapshot.command import POINTS
from lockstep_dashboards.snapshot.page import PageOptions, board_page, page_height
from lockstep_dashboards.snapshot.screenshot import take_screenshot
from lockstep_dashboards.snapshot.shipped import SHIPPED
from lockstep_prometheus.client import Prometheus


def measure(board: Board, source: Prometheus, scope: Scope) -> str:
    """One line on a board."""
    started = time.monotonic()
    answer = ask(board, board.panels, open_board(board, scope, source), source)
    answered = time.monotonic()
    page = board_page(answer, PageOptions(address=source.address))
    drawn = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "board.html"
        path.write_text(page, encoding="utf-8")
        take_screenshot(path, path.with_suffix(".png"), page_height(answer))
    photographed = time.monotonic()
    num_empty = sum(panel.is_empty for panel in answer.queried)
    return (
        f"{board.uid}: {len(answer.panels)} panels, {num_empty} empty, "
        f"{answer.num_queries} queries; asked {answered - started:.2f} s, "
        f"drawn {drawn - answered:.2f} s, "
        f"picture {photographed - drawn:.1f} s, page {len(page) / 1e6:.2f} MB"
    )


def main() -> None:
    """Measures every shipped board."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--from", dest="begin", default="-30m")
    parser.add_argument("--to", dest="end", default="now")
    parser.add_argument("--job")
    parser.add_argument("--scrape-seconds", type=float, default=15.0)
    options = parser.parse_args()
    range_seconds, end = parse_range(options.begin, options.end, time.time())
    scope = Scope(
        end=end,
        range_seconds=range_seconds,
        scrape_seconds=options.scrape_seconds,
        chosen={"job_id": (options.job,)} if options.job else {},
        max_points=POINTS,
    )
    with Prometheus(options.prometheus) as source:
        for board in SHIPPED.values():
            print(measure(board, source, scope))


if __name__ == "__main__":
    main()
