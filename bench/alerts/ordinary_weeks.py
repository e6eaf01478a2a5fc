"""Ordinary weeks, and weeks with one planted fault: what on-call would have heard.

`python bench/alerts/ordinary_weeks.py --weeks 10`: a week takes minutes.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import alerts.situations.ordinary_weeks as weeks
from alerts.situations.shipped import shipped


def main() -> None:
    """Prints a line for each week."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weeks", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--hours", type=float, default=168)
    options = parser.parse_args()
    length = options.hours * 3600
    with tempfile.TemporaryDirectory() as folder:
        paging = shipped(weeks.SCRAPE, Path(folder))
        for seed in range(options.first, options.first + options.weeks):
            for fault in (None, weeks.FAULTS[seed % len(weeks.FAULTS)]):
                begin = time.monotonic()
                situation = weeks.week(seed, fault, length=length)
                pages = weeks.incidents(weeks.replay(situation, paging, length))
                found = [(round(page.time), dict(page.labels)) for page in pages]
                planted = situation.get("object")
                took = time.monotonic() - begin
                print(
                    f"{seed} {fault}: {len(found)} pages in {took:.0f} s; {planted} {found[:3]}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
