"""Reads Slurm's accounting from a time on, as the feed does, and says how long that took.

``python read_accounting.py SINCE STATE ROWS SECONDS``: ends with 1 where there are fewer rows, or
where sacct and the reading took more processor time.
"""

import resource
import sys
import time
from datetime import datetime
from pathlib import Path

from lockstep_ledger.importers.slurm_feed import Selection, SlurmFeed


def processor_seconds() -> float:
    """Of this process and of those that it ran."""
    used = (
        resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    since, state, rows, most = sys.argv[1:]
    begin = time.monotonic()
    since_seconds = datetime.fromisoformat(f"{since}T00:00:00+00:00").timestamp()
    feed = SlurmFeed(Path(state), since_seconds, Selection(), print)
    num_events = sum(1 for _ in feed.poll(time.time()))
    seconds = time.monotonic() - begin
    sys.stdout.write(f"{feed.num_rows} rows, {num_events} events: {processor_seconds():.1f} s of ")
    sys.stdout.write(f"processor time, {seconds:.1f} s by the clock\n")
    sys.exit(feed.num_rows < int(rows) or processor_seconds() > float(most))


if __name__ == "__main__":
    main()
