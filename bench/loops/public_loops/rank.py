"""Runs a script with a fault in it: one rank under a launcher, or the script that starts ranks.

lockstep run --nproc-per-node 2 bench/loops/public_loops/rank.py nanogpt killed
"""

import importlib
import os
import sys

from public_loops.injection import Injection, make_tracks
from public_loops.plan import LOOPS


def main() -> None:
    """Puts the fault in; the processes that a script spawns import this file, and get it too."""
    name, fault = sys.argv[1:]
    module = importlib.import_module(f"public_loops.scripts.{name}")
    Injection(LOOPS[name], fault, make_tracks(LOOPS[name])).install(module)
    if __name__ == "__main__":
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        module.main()


if __name__ in {"__main__", "__mp_main__"}:
    main()
