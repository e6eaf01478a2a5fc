"""Ranks in network namespaces of their own, on one bridge: a cluster's network on one machine.

Each rank has one link to the bridge, a veth pair, or two TAP devices and a relay between them where
packets are to be delayed or lost. Nothing of the machine's own network is touched.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep_trainer.network.link import LINK, RELAY
from lockstep_trainer.network.relay import BRIDGE, READY, Wiring

DEVICE = "lockstep0"
_PORT = 29_500
_PREFIX = "lockstep-"
_MOST_RANKS = 250


class NetworkError(Exception):
    """No namespaces can be made here; the text says what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """The place of one rank in the network.

    Attributes:
        environment: what a trainer that is to be this rank has to find in its environment.
    """

    namespace: str
    environment: dict[str, str]

    def command(self, *command: str) -> list[str]:
        """The command that runs a command in this place."""
        return ["ip", "netns", "exec", self.namespace, *command]


@contextmanager
def network(num_ranks: int, *, relayed: Collection[int] = ()) -> Iterator[tuple[Seat, ...]]:
    """Makes the network, and takes it away again whatever happens.

    Args:
        num_ranks: 250 or fewer.
        relayed: ranks whose packets are to be delayed or lost.

    Raises:
        NetworkError: no root, no iproute2, or a kernel that does not let it.
    """
    _check_can(num_ranks)
    _clear_left_behind()
    hub = f"{_PREFIX}{os.getpid()}"
    with ExitStack() as made:
        folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        _namespace(made, hub)
        _ip("-n", hub, "link", "add", BRIDGE, "type", "bridge")
        _ip("-n", hub, "link", "set", BRIDGE, "up")
        seats = []
        for rank in range(num_ranks):
            orders = folder / f"relay-{rank}" if rank in relayed else None
            seats.append(_seat(made, hub, rank, num_ranks, orders))
        yield tuple(seats)


def _check_can(num_ranks: int) -> None:
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise NetworkError(f"network namespaces need {missing[0]}; install iproute2")
    if os.geteuid() != 0:
        raise NetworkError("network namespaces need root; start this as root")
    if num_ranks > _MOST_RANKS:
        raise NetworkError(f"{num_ranks} ranks are too many for one network of {_MOST_RANKS}")


def _clear_left_behind() -> None:
    """Takes away what a process that was killed could not."""
    for path in Path("/var/run/netns").glob(f"{_PREFIX}*"):
        maker = path.name.removeprefix(_PREFIX).partition("-")[0]
        if maker.isdigit() and not Path("/proc", maker).exists():
            _ip("netns", "delete", path.name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")


def _namespace(made: ExitStack, name: str) -> None:
    _ip("netns", "add", name)
    made.callback(_ip, "netns", "delete", name)
    _ip("-n", name, "link", "set", "lo", "up")


def _seat(made: ExitStack, hub: str, rank: int, num_ranks: int, orders: Path | None) -> Seat:
    name, port, address = f"{hub}-{rank}", f"rank{rank}", f"10.77.0.{rank + 1}/24"
    _namespace(made, name)
    if orders is None:
        ends = ("name", port, "type", "veth", "peer", "name", DEVICE, "netns", name)
        _ip("-n", hub, "link", "add", *ends)
        _ip("-n", hub, "link", "set", port, "master", BRIDGE, "up")
        _ip("-n", name, "address", "add", address, "dev", DEVICE)
        _ip("-n", name, "link", "set", DEVICE, "up")
    else:
        _start_relay(made, Wiring(name, DEVICE, address, hub, port, str(orders)))
    told = {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": DEVICE,
        LINK: DEVICE,
    }
    return Seat(namespace=name, environment=told | ({RELAY: str(orders)} if orders else {}))


def _start_relay(made: ExitStack, wiring: Wiring) -> None:
    relay = subprocess.Popen(
        [sys.executable, "-m", "lockstep_trainer.network.relay", *wiring],
        stdout=subprocess.PIPE,
        text=True,
    )
    made.callback(_end, relay)
    assert relay.stdout is not None
    if relay.stdout.readline().strip() != READY:
        raise NetworkError("the relay did not start; it needs /dev/net/tun")


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()
