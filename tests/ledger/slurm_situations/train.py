"""Trains nothing for some seconds under the monitor, and ends as it is asked to."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import lockstep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--until", type=Path, help="ends well once this file is there")
    parser.add_argument("--exit", type=int, default=0, help="exit status of the rank")
    parser.add_argument(
        "--failing-rank", type=int, default=-1, help="rank that exits so; all of them"
    )
    parser.add_argument(
        "--until-restart", type=int, default=0, help="ends well at once after so many"
    )
    parser.add_argument("--give-way-on", default="", help="signal: save, exit with 75")
    parser.add_argument("--megabytes", type=int, default=0, help="memory to fill at the end")
    parser.add_argument("--raise", dest="message", default="", help="message of a RuntimeError")
    options = parser.parse_args()
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    if options.give_way_on:
        number = getattr(signal, f"SIG{options.give_way_on}")
        signal.signal(number, lambda *_: sys.exit(75))
    monitor = lockstep.attach()
    end = time.monotonic() + options.seconds
    if options.until_restart and restarts >= options.until_restart:
        end = time.monotonic() + 1.0
    while time.monotonic() < end and not (options.until and options.until.exists()):
        monitor.enter_phase("forward")
        time.sleep(0.02)
        monitor.enter_phase("backward")
        time.sleep(0.03)
        monitor.step(loss=1.0)
    memory = [bytearray(1 << 20) for _ in range(options.megabytes)]
    if options.message:
        raise RuntimeError(options.message)
    monitor.close()
    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
    if options.failing_rank in (-1, rank) and not (options.until_restart and restarts):
        sys.exit(options.exit)
    del memory


if __name__ == "__main__":
    main()
