"""Carries the packets of one rank between two network namespaces, later than they came, or never.

Each end is a TAP device: what the kernel sends into it is read here, and the other way round.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from lockstep_trainer.network.link import Conditions

_NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET of <sched.h>
_SET_INTERFACE = 0x4004_54CA  # TUNSETIFF of <linux/if_tun.h>
_FRAMES, _NO_HEADER = 0x0002, 0x1000  # IFF_TAP and IFF_NO_PI
_LARGEST_FRAME_BYTES = 65_536
READY, BRIDGE = "ready", "bridge0"


def _enter(namespace: str) -> None:
    """Moves this process; what it opens from then on lies in the other namespace."""
    with Path("/var/run/netns", namespace).open(encoding="ascii") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"namespace {namespace} cannot be entered")


def _tap(device: str) -> int:
    """A new TAP device in the namespace of this process."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", device.encode(), _FRAMES | _NO_HEADER))
    return end


class Relay:
    """Two ends, the frames on their way, and how they fare.

    Args:
        ends: two descriptors; what is read from one is written to the other.
        orders: datagrams with new ``Conditions`` as JSON.
    """

    def __init__(self, ends: tuple[int, int], orders: socket.socket, seed: int) -> None:
        self._other = {ends[0]: ends[1], ends[1]: ends[0]}
        self._orders, self._chance = orders, random.Random(seed)
        self._conditions = Conditions()
        self._on_the_way: list[tuple[float, int, int, bytes]] = []
        self._num_frames = 0

    def turn(self) -> None:
        """Waits for something to do, and does it."""
        wait = None
        if self._on_the_way:
            wait = max(0.0, self._on_the_way[0][0] - time.monotonic())
        ready, _, _ = select.select([*self._other, self._orders.fileno()], [], [], wait)
        for source in ready:
            if source == self._orders.fileno():
                self._conditions = Conditions(**json.loads(self._orders.recv(4096)))
            else:
                self._take(source)
        while self._on_the_way and self._on_the_way[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(self._on_the_way)
            os.write(end, frame)

    def _take(self, source: int) -> None:
        frame = os.read(source, _LARGEST_FRAME_BYTES)
        self._num_frames += 1
        if self._chance.random() >= self._conditions.loss_ratio:
            due = time.monotonic() + self._conditions.delay_seconds
            heapq.heappush(self._on_the_way, (due, self._num_frames, self._other[source], frame))


def _set_up(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Wiring(NamedTuple):
    """Where the ends lie.

    Attributes:
        inner: namespace of the rank, where ``device`` gets ``address``.
        outer: namespace of all links, where the other end, ``port``, joins the bridge.
        orders: path of the socket for orders.
    """

    inner: str
    device: str
    address: str
    outer: str
    port: str
    orders: str


def main(wiring: Wiring) -> None:
    """Relays until it is killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as orders:
        orders.bind(wiring.orders)
        _enter(wiring.inner)
        rank_end = _tap(wiring.device)
        _set_up("address", "add", wiring.address, "dev", wiring.device)
        _set_up("link", "set", wiring.device, "up")
        _enter(wiring.outer)
        bridge_end = _tap(wiring.port)
        _set_up("link", "set", wiring.port, "master", BRIDGE, "up")
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        relay = Relay((rank_end, bridge_end), orders, seed=0)
        while True:
            relay.turn()


if __name__ == "__main__":
    main(Wiring(*sys.argv[1:]))
