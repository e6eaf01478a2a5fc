"""Forwards the packets of one rank between two network namespaces, with delay and loss.

Each end is a TAP device: what the kernel sends to it is read here, and what is written here is
received by the kernel.
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

from lockstep_trainer.faults.network import Conditions

_NEW_NETWORK = 0x4000_0000  # CLONE_NEWNET of <sched.h>
_SET_INTERFACE = 0x4004_54CA  # TUNSETIFF of <linux/if_tun.h>
_FRAMES, _NO_HEADER = 0x0002, 0x1000  # IFF_TAP and IFF_NO_PI
_LARGEST_FRAME_BYTES = 65_536
READY, BRIDGE = "ready", "bridge0"


def _enter(namespace: str) -> None:
    """Moves this process to a namespace; devices that it opens from then on are in there."""
    with Path("/var/run/netns", namespace).open(encoding="ascii") as file:
        # os.setns comes with Python 3.12.
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"namespace {namespace} cannot be entered")


def _tap(device: str) -> int:
    """A new TAP device in the namespace of this process."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _SET_INTERFACE, struct.pack("16sH22x", device.encode(), _FRAMES | _NO_HEADER))
    return end


class Relay:
    """Forwards frames between two ends.

    Args:
        ends: two descriptors; what is read from one is written to the other.
        orders: datagrams with new ``Conditions`` as JSON.
        seed: of the random loss.
    """

    def __init__(self, ends: tuple[int, int], orders: socket.socket, seed: int) -> None:
        self._other = {ends[0]: ends[1], ends[1]: ends[0]}
        self._orders, self._chance = orders, random.Random(seed)
        self._conditions = Conditions()
        self._in_flight: list[tuple[float, int, int, bytes]] = []
        self._num_frames = 0

    def run_once(self) -> None:
        """Waits for a frame, an order or the end of a delay, and handles it."""
        timeout = None
        if self._in_flight:
            timeout = max(0.0, self._in_flight[0][0] - time.monotonic())
        ready, _, _ = select.select([*self._other, self._orders.fileno()], [], [], timeout)
        for source in ready:
            if source == self._orders.fileno():
                self._conditions = Conditions(**json.loads(self._orders.recv(4096)))
            else:
                self._receive(source)
        while self._in_flight and self._in_flight[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(self._in_flight)
            os.write(end, frame)

    def _receive(self, source: int) -> None:
        frame = os.read(source, _LARGEST_FRAME_BYTES)
        self._num_frames += 1
        if self._chance.random() >= self._conditions.loss_ratio:
            due = time.monotonic() + self._conditions.delay_seconds
            # The frame number keeps frames of equal delay in order; bytes are never compared.
            heapq.heappush(self._in_flight, (due, self._num_frames, self._other[source], frame))


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Wiring(NamedTuple):
    """Names of the two ends.

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
        _run_ip("address", "add", wiring.address, "dev", wiring.device)
        _run_ip("link", "set", wiring.device, "up")
        _enter(wiring.outer)
        bridge_end = _tap(wiring.port)
        _run_ip("link", "set", wiring.port, "master", BRIDGE, "up")
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        relay = Relay((rank_end, bridge_end), orders, seed=0)
        while True:
            relay.run_once()


if __name__ == "__main__":
    main(Wiring(*sys.argv[1:]))
