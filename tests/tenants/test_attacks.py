"""No user harms another: attacks by the real programs, run as two users."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tenants import users
from tenants.campaign import TELLING
from tenants.table import ATTACKS

BENCH = Path(__file__).parents[2] / "bench" / "tenants"


def _run(program: str, *words: str | Path, seconds: float) -> str:
    """Runs a program of the bench; it changes users and mounts, which this process must not."""
    if reason := users.why_impossible():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, BENCH / program, *words],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def _harm(tmp_path: Path, *words: str, seconds: float) -> dict[str, str]:
    path = tmp_path / "results.json"
    _run("campaign.py", "--json", path, *words, seconds=seconds)
    results: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return results


def test_the_table_covers_every_surface_and_the_choice_is_part_of_it() -> None:
    surfaces = {attack.surface for attack in ATTACKS.values()}
    assert surfaces >= {"pages", "side files", "events", "http", "logs", "reports", "launcher"}
    assert {"absent", "queues", "money", "root_code", "host_names"} <= surfaces
    assert len(ATTACKS) >= 350
    assert set(TELLING) <= set(ATTACKS)


# An answer that comes late counts as harm, so nothing else runs beside them.
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_the_most_telling_attacks_leave_a_neighbour_as_it_was(tmp_path: Path) -> None:
    results = _harm(tmp_path, "--telling", seconds=170)
    assert results == dict.fromkeys(TELLING, "") | results
    assert not any(results.values())


@pytest.mark.release
@pytest.mark.timing
@pytest.mark.timeout(1200)
def test_no_attack_of_the_table_harms_a_neighbour(tmp_path: Path) -> None:
    results = _harm(tmp_path, seconds=1190)
    assert results.keys() == ATTACKS.keys()
    assert not any(results.values())
