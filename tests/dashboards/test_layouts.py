"""A layout is read into a board, and what it cannot mean is refused with file, row and panel."""

from pathlib import Path

import pytest

from lockstep_dashboards.layout import FOLDER, read_board

HEAD = """\
uid: lockstep-x
title: X
description: Of a test.
range: 1h
refresh: 1m
variables:
  - {label: cluster, title: Cluster, source: lockstep_train_step, several: true}
  - {label: job_id, title: Job, source: lockstep_train_step}
"""
STEP, RANKS = "lockstep_train" + "_step", "lockstep_train" + "_ranks"


def write(folder: Path, panel: str) -> Path:
    (folder / "annotations.yaml").write_text((FOLDER / "annotations.yaml").read_text())
    path = folder / "x.yaml"
    path.write_text(f"{HEAD}rows: [{{title: R, panels: [{{{panel}}}]}}]\n")
    return path


def test_queries_are_restricted_to_what_the_variables_choose(tmp_path: Path) -> None:
    [panel] = read_board(write(tmp_path, f"stat: {STEP}, expr: max ({STEP})")).panels
    assert panel.queries[0].expression == f'max ({STEP}{{cluster=~"$cluster", job_id="$job_id"}})'
    assert (panel.title, panel.width, panel.height) == ("Step", 4, 4)


def test_a_panel_can_name_the_variables_that_restrict_it(tmp_path: Path) -> None:
    [panel] = read_board(write(tmp_path, f"stat: {STEP}, chosen: [job_id], expr: {STEP}")).panels
    assert panel.queries[0].expression == f'{STEP}{{job_id="$job_id"}}'


@pytest.mark.parametrize(
    ("panel", "reason"),
    [
        ("stat: lockstep_nothing, expr: x", "unknown name 'lockstep_nothing'"),
        (f"stat: {STEP}, expr: x, colour: red", "unknown name 'colour'"),
        (f"table: {STEP}, expr: x, columns: [nodes]", "unknown name 'nodes'"),
        (f"""stat: {STEP}, expr: '{STEP}{{rank="1"}}'""", f"{STEP} has no label rank"),
        (f"""stat: {RANKS}, expr: '{RANKS}{{state="x"}}'""", "state='x' is not one of init"),
    ],
)
def test_what_the_catalogue_does_not_know_is_refused_with_its_place(
    tmp_path: Path, panel: str, reason: str
) -> None:
    with pytest.raises(ValueError, match=r"x\.yaml: row 'R', panel .*") as refused:
        read_board(write(tmp_path, panel))
    assert reason in str(refused.value)
