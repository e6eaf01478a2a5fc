"""Files whose writer was killed, forked by a process that has imported what it needs."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from servers import wait_until

KILLS = int(os.environ.get("LOCKSTEP_KILLS", "10"))
_READY_SECONDS = 40.0
# An interpreter for each writer would take most of the time.
_FORKS = """
import os, sys
import sample_pages
write = getattr(sample_pages, sys.argv[1])
for line in sys.stdin:
    writer = os.fork()
    if writer == 0:
        write(line.strip())
    print(writer, flush=True)
    os.waitpid(writer, 0)
    print("dead", flush=True)
"""


def killed_files(
    folder: Path, function: str, suffix: str, is_readable: Callable[[Path], bool]
) -> Iterator[Path]:
    """Files that a function of ``sample_pages`` wrote until it was killed, at random moments."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # pytest shows it when the test fails
    chance = random.Random(seed)
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS, function], cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as server:  # fmt: skip
        assert server.stdin
        assert server.stdout
        try:
            for number in range(KILLS):
                path = folder / f"rank-{number:05d}{suffix}"
                server.stdin.write(f"{path}\n")
                server.stdin.flush()
                writer = int(server.stdout.readline())
                wait_until(partial(is_readable, path), _READY_SECONDS, pause=0.001)
                time.sleep(chance.uniform(0, 0.03))
                os.kill(writer, signal.SIGKILL)
                assert server.stdout.readline() == "dead\n"
                yield path
        finally:
            os.killpg(server.pid, signal.SIGKILL)
