"""The situations on a real Slurm: a part of them in CI, all before a release."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .perform import Results, perform_all
from .scenario import SITUATIONS, Situation

PROGRAMS = ("slurmctld", "slurmdbd", "mariadbd", "munged")
# Of those that have the lab to themselves: one of each daemon, a node, and the past.
LIVE = frozenset({
    "slurmdbd restarts", "a failed node, not requeued", "preempted by a higher partition",
    "a job that waits for GPUs", "pages in /run/lockstep", "a feed in Pacific/Kiritimati",
})  # fmt: skip
SECONDS = 2400.0


def _missing() -> str:
    folders = "/usr/sbin:/usr/bin:/sbin:/bin"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=folders) is None]
    if lacking:
        return f"a Slurm cannot be started: {', '.join(lacking)} are not installed"
    return "" if os.geteuid() == 0 else "a Slurm cannot be started: that needs root"


pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(bool(_missing()), reason=_missing() or "everything is there"),
]


def _param(situation: Situation) -> Any:
    is_live = not situation.conf and (not situation.is_alone or situation.name in LIVE)
    marks = [pytest.mark.cluster] if is_live else [pytest.mark.release]
    return pytest.param(situation, id=situation.name, marks=marks)


@pytest.fixture(name="results", scope="module")
def _results(request: pytest.FixtureRequest) -> Iterator[Results]:
    """Complaints by situation: all that are selected run before the first is judged."""
    called = [getattr(item, "callspec", None) for item in request.session.items]
    named = [each.params.get("situation") for each in called if each is not None]
    chosen = [each for each in named if isinstance(each, Situation)]
    with tempfile.TemporaryDirectory(
        prefix="lockstep-slurm-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as folder:
        Path(folder).chmod(0o755)
        yield perform_all(Path(folder), chosen, SECONDS)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("situation", [_param(each) for each in SITUATIONS])
def test_a_situation_is_told_as_slurm_tells_it(results: Results, situation: Situation) -> None:
    assert results.get(situation.name) == []
