"""What runs in a training loop is imported without anything beyond the standard library."""

import sys

import pytest
from servers import captured

NEEDS_NOTHING = """
import sys
before = set(sys.modules)
import {module}
# multiprocessing calls the main module so too.
rooms = "", "_catalogue", "_outcomes", "_records"
components = ("__mp_main__", *(f"lockstep{{room}}" for room in rooms))
tops = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(tops - sys.stdlib_module_names - set(components)))
"""


@pytest.mark.parametrize(
    "module", ["lockstep_catalogue", "lockstep_records.page.writer", "lockstep"]
)
def test_what_runs_in_the_loop_needs_nothing_beyond_the_standard_library(module: str) -> None:
    done = captured(
        [sys.executable, "-c", NEEDS_NOTHING.format(module=module)], check=True, timeout=30
    )
    assert done.stdout.split() == []
