"""Trains nothing for some seconds under the monitor, and ends as it is asked to."""

import argparse
import os
import signal
import sys
import time

import lockstep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--until-restart", type=int, default=0, help="ends well at once after so many"
    )
    parser.add_argument("--give-way-on", default="", help="signal: save, exit with 75")
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
    while time.monotonic() < end:
        monitor.enter_phase("forward")
        time.sleep(0.02)
        monitor.enter_phase("backward")
        time.sleep(0.03)
        monitor.step(loss=1.0)
    if options.message:
        raise RuntimeError(options.message)
    monitor.close()


if __name__ == "__main__":
    main()
