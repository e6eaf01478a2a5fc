"""How long a board takes to ask for, to draw and to photograph, and how large its page is.

`python bench/simulated_cluster/snapshots.py --prometheus URL --from -30m [--job JOB]`, over any
Prometheus with data, such as the one that bench/simulated_cluster fills.
"""

import argparse
import tempfile
import time
from pathlib import Path

from lockstep_dashboards.snapshot.answers import ask
from lockstep_dashboards.snapshot.page import PageOptions, board_page, page_height
from lockstep_dashboards.snapshot.screenshot import take_screenshot
from lockstep_dashboards.snapshot.shipped import KnownBoard, shipped_boards
from lockstep_dashboards.snapshot.variables import choose
from lockstep_dashboards.snapshot.window import Window, parse_time
from lockstep_records.shared.prometheus import Prometheus


def measure(item: KnownBoard, source: Prometheus, window: Window, job: str | None) -> str:
    """One line on a board."""
    has_job = any(variable["name"] == "job_id" for variable in item.board.variables)
    wishes = {"job_id": (job,)} if job and has_job else {}
    started = time.monotonic()
    choices = choose(item.board, source, window, wishes, strict=True)
    answer = ask(item.board, list(item.board.panels), choices, source=source, window=window)
    answered = time.monotonic()
    page = board_page(answer, PageOptions(address=source.address))
    drawn = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "board.html"
        path.write_text(page, encoding="utf-8")
        take_screenshot(path, path.with_suffix(".png"), page_height(answer))
    photographed = time.monotonic()
    num_empty = sum(panel.is_empty for panel in answer.panels if panel.queries)
    return (
        f"{item.name}: {len(answer.panels)} panels, {num_empty} empty, "
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
    now = time.time()
    window = Window.of(
        parse_time(options.begin, now), parse_time(options.end, now), options.scrape_seconds
    )
    with Prometheus(options.prometheus) as source:
        for item in shipped_boards():
            print(measure(item, source, window, options.job))


if __name__ == "__main__":
    main()
