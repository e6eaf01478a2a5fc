import os
import signal
import time
from pathlib import Path

import pytest
from servers import wait_until

from .jobs import TINY, started

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("num_ranks", "flags", "fate"),
    [
        (2, "", signal.SIGSTOP),
        pytest.param(
            4, "--strategy hybrid --fsdp 2 --tp 2", signal.SIGKILL, marks=pytest.mark.release
        ),
        pytest.param(
            4, "--strategy hybrid --dp 2 --pp 2", signal.SIGSTOP, marks=pytest.mark.release
        ),
    ],
)
def test_ranks_whose_peer_is_gone_end_within_the_timeout(
    memory: Path, num_ranks: int, flags: str, fate: signal.Signals
) -> None:
    endless = f"{TINY} --steps 1000000 --timeout 5s --batch 4 {flags}"
    off = {"LOCKSTEP": "off"}
    with started(endless, num_ranks=num_ranks, folder=memory, environment=off) as (ranks, log):
        wait_until(lambda: "step 3 " in log.read_text(), 60, log.read_text)
        *survivors, victim = ranks
        assert victim.pid is not None
        os.kill(victim.pid, fate)
        begin = time.monotonic()
        for rank in survivors:
            rank.join(30)
        assert all(rank.exitcode not in {None, 0} for rank in survivors)
        assert time.monotonic() - begin < 5 + 10
