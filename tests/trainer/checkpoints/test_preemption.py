import os
import signal
import subprocess
import sys

from servers import wait_until
from torch._C._distributed_c10d import HashStore  # torch.distributed offers it, untyped

from lockstep_trainer.checkpoints.preemption import Preemption, handle_sigterm
from lockstep_trainer.layout.world import World

# Waits in one call of C, as in a collective, in which no Python handler can run.
STUCK = """
import ctypes, sys
from torch._C._distributed_c10d import HashStore
from lockstep_trainer.checkpoints.preemption import Preemption, handle_sigterm
from lockstep_trainer.layout.world import World

with handle_sigterm(Preemption(World(store=HashStore()), every=1, last=9), 0.2):
    print("ready", flush=True)
    while True:
        ctypes.CDLL(None).sleep(60)
"""


def ranks(count: int, *, every: int, last: int = 100) -> list[Preemption]:
    store = HashStore()
    worlds = [World(rank=rank, size=count, store=store) for rank in range(count)]
    return [Preemption(world, every=every, last=last) for world in worlds]


def test_ranks_that_end_a_step_in_any_order_stop_after_the_same_step() -> None:
    early, late = ranks(2, every=1)
    early.request_stop()
    assert not early.should_stop(1)  # and writes, before the other checks the same step
    assert not late.should_stop(1)
    assert (early.should_stop(2), late.should_stop(2)) == (True, True)


def test_ranks_with_requests_at_different_steps_stop_after_the_same_step() -> None:
    first, second = ranks(2, every=4)
    first.request_stop()
    assert [first.should_stop(step) for step in (1, 2)] == [False, False]
    second.request_stop()
    assert [second.should_stop(step) for step in (1, 2, 3)] == [False, False, False]
    assert [first.should_stop(step) for step in (3, 4)] == [False, True]
    assert second.should_stop(4)


def test_a_request_at_the_last_steps_lets_the_run_end() -> None:
    (single,) = ranks(1, every=1, last=3)
    single.request_stop()
    assert [single.should_stop(step) for step in (2, 3)] == [False, False]


def test_sigterm_is_a_request_and_does_not_end_the_process() -> None:
    (single,) = ranks(1, every=1)
    with handle_sigterm(single, 60):
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: single.is_requested, 40)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_rank_that_is_stuck_is_ended_after_the_grace() -> None:
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stuck:
        assert stuck.stdout is not None
        assert stuck.stderr is not None
        assert stuck.stdout.readline() == b"ready\n"
        stuck.terminate()
        assert stuck.wait(timeout=40) == 1
        assert b"not done 0.2 s after SIGTERM" in stuck.stderr.read()
