import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import pytest
from trainer_validation.slow_network.__main__ import main
from trainer_validation.slow_network.namespaces import NetworkError, network
from trainer_validation.slow_network.relay import Relay

from lockstep_trainer.faults.network import Conditions

from .. import jobs
from ..jobs import run_fork

TOKENS_PER_STEP = 2 * 2 * 32
TINY = f"{jobs.TINY} --steps 32"
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None or not Path("/dev/net/tun").exists(),
    reason="network namespaces need root, iproute2 and /dev/net/tun",
)


class RelayHarness:
    """A relay between two sockets in place of the two devices."""

    def __init__(self) -> None:
        self.pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
        (self.rank, rank_end), (self.others, bridge_end), (self.orders, orders_end) = self.pairs
        self.relay = Relay((rank_end.fileno(), bridge_end.fileno()), orders_end, seed=1)

    def apply(self, conditions: Conditions) -> None:
        self.orders.send(json.dumps(asdict(conditions)).encode())
        self.relay.run_once()


@pytest.fixture
def wire() -> Iterator[RelayHarness]:
    wire = RelayHarness()
    yield wire
    for pair in wire.pairs:
        for end in pair:
            end.close()


def test_a_relay_forwards_in_both_directions_and_delays_as_ordered(wire: RelayHarness) -> None:
    wire.rank.send(b"ping")
    wire.relay.run_once()
    assert wire.others.recv(100) == b"ping"
    wire.apply(Conditions(delay_seconds=0.05))
    wire.others.send(b"pong")
    start = time.monotonic()
    wire.rank.settimeout(0.001)
    while True:
        wire.relay.run_once()
        try:
            assert wire.rank.recv(100) == b"pong"
            break
        except TimeoutError:
            assert time.monotonic() < start + 5
    assert time.monotonic() - start >= 0.05


def test_a_relay_loses_the_ordered_share_of_frames_and_keeps_their_order(
    wire: RelayHarness,
) -> None:
    wire.apply(Conditions(loss_ratio=0.3))
    arrived = []
    wire.others.setblocking(False)
    for number in range(400):
        wire.rank.send(str(number).encode())
        wire.relay.run_once()
        try:
            arrived.append(int(wire.others.recv(100)))
        except BlockingIOError:
            continue
    assert 0.6 < len(arrived) / 400 < 0.8
    assert arrived[:5] == sorted(arrived[:5])


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


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NetworkError, match="need ip; install iproute2"), network(2):
        pass


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
