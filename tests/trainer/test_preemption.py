import os
import signal
import subprocess
import sys
import time

import pytest
from torch._C._distributed_c10d import HashStore  # torch.distributed offers it, untyped

from lockstep_trainer.preemption import Preemption, watched
from lockstep_trainer.world import World

# Waits in one call of C, as in a collective, in which no Python handler can run.
STUCK = """
import ctypes, sys
from torch._C._distributed_c10d import HashStore
from lockstep_trainer.preemption import Preemption, watched
from lockstep_trainer.world import World

with watched(Preemption(World(store=HashStore()), every=1, last=9), 0.2):
    print("ready", flush=True)
    while True:
        ctypes.CDLL(None).sleep(60)
"""


def ranks(count: int, *, every: int, last: int = 100) -> list[Preemption]:
    store = HashStore()
    worlds = [World(rank=rank, size=count, store=store) for rank in range(count)]
    return [Preemption(world, every=every, last=last) for world in worlds]


def test_ranks_that_come_to_the_end_of_a_step_in_any_order_stop_after_the_same() -> None:
    early, late = ranks(2, every=1)
    early.tell()
    assert not early.agreed(1)  # and writes, before the other looks at the same step
    assert not late.agreed(1)
    assert (early.agreed(2), late.agreed(2)) == (True, True)


def test_two_ranks_told_at_different_steps_stop_after_the_same() -> None:
    one, other = ranks(2, every=4)
    one.tell()
    assert [one.agreed(step) for step in (1, 2)] == [False, False]
    other.tell()
    assert [other.agreed(step) for step in (1, 2, 3)] == [False, False, False]
    assert [one.agreed(step) for step in (3, 4)] == [False, True]
    assert other.agreed(4)


def test_a_run_that_is_about_to_end_anyway_ends() -> None:
    (alone,) = ranks(1, every=1, last=3)
    alone.tell()
    assert [alone.agreed(step) for step in (2, 3)] == [False, False]


def test_sigterm_is_heard_and_told_to_nobody_else() -> None:
    (alone,) = ranks(1, every=1)
    with watched(alone, 60):
        os.kill(os.getpid(), signal.SIGTERM)
        until = time.monotonic() + 5
        while not alone.told and time.monotonic() < until:
            time.sleep(0.001)
    assert alone.told
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_rank_that_is_stuck_is_ended_when_the_grace_is_over() -> None:
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stuck:
        assert stuck.stdout is not None
        assert stuck.stderr is not None
        assert stuck.stdout.readline() == b"ready\n"
        began = time.monotonic()
        stuck.terminate()
        assert stuck.wait(timeout=20) == 1
        assert time.monotonic() - began == pytest.approx(0.2, abs=2)
        assert b"not done 0.2 s after SIGTERM" in stuck.stderr.read()
