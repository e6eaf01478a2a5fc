"""The plugin keeps each collective and ends none of NCCL's calls otherwise than with success."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.commands.plugin import plugin
from lockstep.launch.nccl_plugin import FOLLOWING, LOADED, plugin_path, plugin_settings
from lockstep_records.files.jobs import list_attempts, list_pages
from lockstep_records.nccl.launches import read_launches
from lockstep_records.page.reader import Page, read_page, read_rows
from lockstep_records.page.replicas import UNSEEN, unseen_in

from .ranks import compile_driver, ddp, run_ranks

STEPS, LAYERS = 60, 4


def pages_of(job: Path) -> list[Page]:
    return [read_page(path) for path in list_pages(list_attempts(job)[-1])]


# name, what the driver plays, collectives of a rank, rows by the device
LIVES: dict[str, tuple[dict[str, Any], int, bool]] = {
    **{f"v{n}": ({"version": n}, STEPS * LAYERS, 4 <= n <= 6) for n in range(3, 8)},
    "256 channels": ({"channels": 256}, STEPS * LAYERS, True),
    "children before the stop": ({"after_stop": 0}, STEPS * LAYERS, True),
    "two nodes": ({"version": 7, "nodes": 2}, STEPS * LAYERS, False),
    "64 communicators": ({"plan": ddp(4, layers=64, comms=64)}, STEPS * 64, True),
    "loaded again": ({"reload": 30}, STEPS * LAYERS, True),
    "a graph": ({"version": 7, "graph": 3}, 4 * LAYERS, False),
    "a graph with proxies": ({"version": 7, "graph": 1, "nodes": 2}, STEPS * LAYERS, False),
    "a forked worker": ({"fork_step": 5}, STEPS * LAYERS, True),
    "no environment": ({"no_env": 1}, STEPS * LAYERS, True),
}


@pytest.mark.parametrize(("settings", "collectives", "by_device"), LIVES.values(), ids=LIVES)
def test_each_collective_is_kept_and_counted_in_its_step(
    root: Path, settings: dict[str, Any], collectives: int, by_device: bool
) -> None:
    given = {"plan": ddp(4, step_us=2000, layers=LAYERS), **settings}
    job, errors = run_ranks(root, ranks=4, steps=STEPS, **given)
    assert errors == ""
    pages = pages_of(job)
    assert [page.identity["rank"] for page in pages] == [0, 1, 2, 3]
    for page in pages:
        launches = read_launches(page.path)
        assert launches.interface == settings.get("version", 6)
        assert len(launches.collectives) == collectives
        launched = STEPS // 2 * LAYERS if "reload" in settings else collectives  # it counts anew
        assert sum(launches.by_communicator.values()) == launched
        numbers = [each["number"] for each in launches.collectives]
        assert numbers == list(range(1, collectives + 1))
        assert page.phase == "done"
        is_unseen = UNSEEN["launches"] in unseen_in(page.periodic)
        assert is_unseen == (launches.interface < 5 or "graph" in settings)
        if collectives >= STEPS * LAYERS:
            assert page.state["step"] == STEPS - 1
            rows = read_rows(page)
            assert [row["step"] for row in rows][-40:] == [*range(STEPS - 40, STEPS)]
            assert any(row["flags"] & 128 for row in rows) == by_device
            assert (
                page.state["collectives"]["all_reduce"]
                == collectives // STEPS * page.state["steps"]
            )


@pytest.mark.parametrize("kind", ["thread", "address,undefined"])
@pytest.mark.parametrize(
    "settings",
    [
        {"version": 6},
        {"version": 7, "ahead": 9, "nodes": 2},
        {"version": 4, "reload": 20, "after_stop": 0},
        {"version": 3, "plan": ddp(2, step_us=1000, layers=64, comms=64)},
    ],
    ids=["v6", "v7 with hosts ahead", "v4 loaded again", "v3 with 64 communicators"],
)
def test_a_sanitizer_finds_nothing(root: Path, kind: str, settings: dict[str, Any]) -> None:
    _, errors = run_ranks(root, f"-fsanitize={kind}", ranks=2, steps=40, **settings)
    assert "Sanitizer" not in errors


def test_all_calls_are_handed_on_to_the_plugin_that_is_configured(root: Path) -> None:
    following = str(compile_driver().following)
    environment = {"LOCKSTEP_NCCL_NEXT_PLUGIN": following}
    job, errors = run_ranks(root, ranks=2, steps=30, environment=environment)
    for line in errors.splitlines():
        counts = dict(pair.split("=") for pair in line.split()[1:])
        assert counts["odd"] == "0"
        assert int(counts["nets"]) == int(counts["states"]) == 30 * LAYERS * 2  # channels
        assert counts["starts"] == counts["stops"]
    assert len(errors.splitlines()) == 2
    # The other one asks for the kernels of all steps, and ours has them too.
    assert all(page.state["steps"] > 20 for page in pages_of(job))


def test_the_command_prints_the_lines_that_load_it_and_keeps_another_behind_it() -> None:
    path = str(plugin_path())
    assert CliRunner().invoke(plugin, ["--path"]).output == f"{path}\n"
    assert plugin_settings({}) == plugin_settings({LOADED: path}) == {LOADED: path}
    assert plugin_settings({LOADED: "comma"}) == {LOADED: path, FOLLOWING: "comma"}
    assert ctypes.CDLL(path).ncclProfiler_v7
