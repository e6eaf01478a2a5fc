import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from trainer_validation.slow_network.__main__ import main
from trainer_validation.slow_network.namespaces import network

from .. import jobs
from ..jobs import run_fork

TOKENS_PER_STEP = 2 * 2 * 32
TINY = f"{jobs.TINY} --steps 32"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None or not Path("/dev/net/tun").exists(),
    reason="network namespaces need root, iproute2 and /dev/net/tun",
)


def namespaces() -> str:
    return subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=True
    ).stdout


@needs_root
def test_a_network_is_removed_when_its_context_ends_by_an_error() -> None:
    name = f"lockstep-{os.getpid()}"

    def fail() -> None:
        with network(2, relayed={1}) as ranks:
            assert name in namespaces()
            ping = "import socket; socket.create_server(('10.77.0.2', 5000)).close()"
            done = subprocess.run(ranks[1].command(sys.executable, "-c", ping), check=False)
            assert done.returncode == 0
            raise RuntimeError("something else went wrong")

    with pytest.raises(RuntimeError, match="something else"):
        fail()
    assert name not in namespaces()


@pytest.mark.release
@pytest.mark.timing
@needs_root
@pytest.mark.distributed
@pytest.mark.timeout(150)
def test_ranks_with_a_slow_network_take_longer_in_those_steps_alone(memory: Path) -> None:
    # At 25 % lost, TCP's doubling waits for one packet reach gloo's 60 s in one of twenty runs.
    faults = (
        "--fault slow-network:rank=1,step=5,until=9,delay=40ms",
        "--fault slow-network:rank=0,step=13,until=17,mbit=2",
        "--fault slow-network:rank=1,step=21,until=31,loss_percent=12",
    )
    arguments = f"--ranks 2 {TINY} {' '.join(faults)}"
    outcome = run_fork(main, arguments, folder=memory, LOCKSTEP="off")
    assert outcome.codes == (0,), outcome.output
    assert outcome.output.count("fault: slow-network") == 18
    speeds = re.findall(r"step (\d+) loss \S+ tokens/s (\d+)", outcome.output)
    seconds = {int(step): TOKENS_PER_STEP / int(speed) for step, speed in speeds}
    healthy, delayed, narrow = (
        median(seconds[step] for step in steps)
        for steps in (range(9, 13), range(5, 9), range(13, 17))
    )
    assert delayed > healthy + 0.08  # there and back again
    assert narrow > healthy + 0.1
    retransmitted = max(seconds[step] for step in range(21, 31))
    assert retransmitted > healthy + 0.15  # TCP waits 0.2 s before it sends a lost packet again
