"""Ranks in network namespaces on one bridge: a cluster's network on one machine.

Each rank has one link to the bridge: a veth pair, or two TAP devices with a relay between them if
packets are to be delayed or lost. The machine's own network is left alone.
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

from lockstep_trainer.faults.network import LINK, RELAY
from trainer_validation.slow_network.relay import BRIDGE, READY, Wiring

DEVICE = "lockstep0"
_PORT = 29_500
_PREFIX = "lockstep-"
_MAX_RANKS = 250  # addresses of one /24


class NetworkError(Exception):
    """The namespaces cannot be created; the text says what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankNamespace:
    """The network namespace of one rank.

    Attributes:
        environment: variables that a trainer process needs to be this rank.
    """

    namespace: str
    environment: dict[str, str]

    def command(self, *command: str) -> list[str]:
        """The command that runs a command in this namespace."""
        return ["ip", "netns", "exec", self.namespace, *command]


@contextmanager
def network(
    num_ranks: int, *, relayed: Collection[int] = ()
) -> Iterator[tuple[RankNamespace, ...]]:
    """Creates the network, and removes it when the context is left.

    Args:
        num_ranks: 250 or fewer.
        relayed: ranks whose links get a relay, for delay and loss.

    Raises:
        NetworkError: root or iproute2 is missing, or the kernel refuses.
    """
    _check_requirements(num_ranks)
    _remove_stale_namespaces()
    # The process id in the name says later whether the run is still alive.
    hub = f"{_PREFIX}{os.getpid()}"
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        _add_namespace(cleanup, hub)
        _ip("-n", hub, "link", "add", BRIDGE, "type", "bridge")
        _ip("-n", hub, "link", "set", BRIDGE, "up")
        namespaces = []
        for rank in range(num_ranks):
            orders = folder / f"relay-{rank}" if rank in relayed else None
            namespaces.append(_add_rank(cleanup, hub, rank, num_ranks, orders))
        yield tuple(namespaces)


def _check_requirements(num_ranks: int) -> None:
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        raise NetworkError(f"network namespaces need {missing[0]}; install iproute2")
    if os.geteuid() != 0:
        raise NetworkError("network namespaces need root; start this as root")
    if num_ranks > _MAX_RANKS:
        raise NetworkError(f"{num_ranks} ranks are too many for one network of {_MAX_RANKS}")


def _remove_stale_namespaces() -> None:
    """Removes the namespaces of runs that were killed: their names hold the process id."""
    for path in Path("/var/run/netns").glob(f"{_PREFIX}*"):
        creator_pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if creator_pid.isdigit() and not Path("/proc", creator_pid).exists():
            _ip("netns", "delete", path.name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")


def _add_namespace(cleanup: ExitStack, name: str) -> None:
    _ip("netns", "add", name)
    cleanup.callback(_ip, "netns", "delete", name)
    _ip("-n", name, "link", "set", "lo", "up")


def _add_rank(
    cleanup: ExitStack, hub: str, rank: int, num_ranks: int, orders: Path | None
) -> RankNamespace:
    name, port, address = f"{hub}-{rank}", f"rank{rank}", f"10.77.0.{rank + 1}/24"
    _add_namespace(cleanup, name)
    if orders is None:
        ends = ("name", port, "type", "veth", "peer", "name", DEVICE, "netns", name)
        _ip("-n", hub, "link", "add", *ends)
        _ip("-n", hub, "link", "set", port, "master", BRIDGE, "up")
        _ip("-n", name, "address", "add", address, "dev", DEVICE)
        _ip("-n", name, "link", "set", DEVICE, "up")
    else:
        _start_relay(cleanup, Wiring(name, DEVICE, address, hub, port, str(orders)))
    environment = {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": str(_PORT),
        # gloo would else choose the interface of the host name, which is not in this namespace.
        "GLOO_SOCKET_IFNAME": DEVICE,
        LINK: DEVICE,
    }
    if orders is not None:
        environment[RELAY] = str(orders)
    return RankNamespace(namespace=name, environment=environment)


def _start_relay(cleanup: ExitStack, wiring: Wiring) -> None:
    relay = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("relay.py"), *wiring],
        stdout=subprocess.PIPE,
        text=True,
    )
    cleanup.callback(_end, relay)
    assert relay.stdout is not None
    if relay.stdout.readline().strip() != READY:
        raise NetworkError("the relay did not start; it needs /dev/net/tun")


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()
