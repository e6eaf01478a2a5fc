"""The boards as values of Grafana's own types, by tsc, where npm is: 10.3, 11.6, 12.0 and 13.1."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from simulated_cluster import fill, simulated
from simulated_cluster.boards_on_cluster import check_boards, num_opening_queries

from lockstep_dashboards.grafana import render
from lockstep_dashboards.layout import BOARDS

from .test_boards_lint import MAX_OPENING_QUERIES

pytestmark = [pytest.mark.server, pytest.mark.release, pytest.mark.timeout(300)]
VERSIONS = {"v10": "10.3.0", "v11": "11.6.0", "v12": "12.0.0", "v13": "13.1.0"}
CACHE = Path.home() / ".cache" / "lockstep-grafana-types"
PACKAGES = {
    "private": True,
    "dependencies": {"typescript": "5.6.3"}
    | {name: f"npm:@grafana/schema@{version}" for name, version in VERSIONS.items()},
}
# A board in JSON has the texts and numbers of the enumerations, and not their members.
PLAIN = """
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""
FLAGS = "--noEmit --strict --skipLibCheck --module nodenext --moduleResolution nodenext"


@pytest.fixture(scope="module")
def modules() -> Path:
    """The folder of the packages, which npm fills once."""
    if shutil.which("npm") is None:
        pytest.skip("not on PATH: npm")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "package.json").write_text(json.dumps(PACKAGES))
    if not (CACHE / "node_modules" / ".bin" / "tsc").exists():
        install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        if subprocess.run(install, cwd=CACHE, check=False, timeout=200).returncode:
            pytest.skip("npm cannot install @grafana/schema here")
    return CACHE


def complaints(modules: Path, version: str, boards: list[dict[str, Any]]) -> list[str]:
    lines = [f"import type {{ Dashboard }} from '{version}';", PLAIN]
    for number, board in enumerate(boards):
        # The types of an annotation are those of Grafana's own; a data source adds its fields.
        for annotation in board["annotations"]["list"]:
            for name in ("expr", "target", "titleFormat"):
                annotation.pop(name)
        for variable in board["templating"]["list"]:
            # dashboard-linter asks for the definition; the types of 10.3 lack what Grafana reads.
            for name in ("definition", *(("includeAll", "allValue") if version == "v10" else ())):
                variable.pop(name, None)
        text = json.dumps(board, indent=1)
        lines.append(f"export const board{number}: Plain<Dashboard> = {text};")
    path = modules / f"{version}-{os.getpid()}.ts"
    path.write_text("\n".join(lines), encoding="utf-8")
    try:
        command = [str(modules / "node_modules" / ".bin" / "tsc"), *FLAGS.split(), path.name]
        done = subprocess.run(command, cwd=modules, capture_output=True, text=True, check=False)
        return done.stdout.splitlines()
    finally:
        path.unlink()


@pytest.mark.parametrize("version", VERSIONS)
def test_every_board_is_a_dashboard_of_grafanas_types(modules: Path, version: str) -> None:
    assert complaints(modules, version, [render(board) for board in BOARDS.values()]) == []


def test_no_panel_is_empty_none_errs_and_none_floods(
    tmp_path: Path, serve_prometheus: Callable[[Path], AbstractContextManager[str]]
) -> None:
    config = tmp_path / "prometheus.yaml"
    config.write_text("global: {}\n", encoding="utf-8")
    cluster = simulated(end=time.time(), range_seconds=1200)
    with serve_prometheus(config) as url:
        fill(url, cluster)
        findings = check_boards(url, cluster)
    problems = {
        (uid, finding.panel): finding.problem
        for uid, found in findings.items()
        for finding in found
        if finding.problem
    }
    assert problems == {}
    assert all(num_opening_queries(board) <= MAX_OPENING_QUERIES for board in BOARDS.values())
