"""Run the command line with a clock that is ahead: offset_clock SECONDS ARGUMENT..."""

import sys
import time

offset = float(sys.argv[1])
true_time = time.time
time.time = lambda: true_time() + offset

from lockstep_cli.main import main  # noqa: E402  # it takes the clock as it finds it

sys.argv = ["lockstep", *sys.argv[2:]]
main()
