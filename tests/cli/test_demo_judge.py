"""The demo's judge: it must fail whenever page, verdict or report say anything but the truth."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep_catalogue.windows import ScrapeWindows
from lockstep_cli.demo.scene import (
    Claims,
    ReceivedPage,
    Truth,
    draw_script,
    fault_flags,
    judge,
    read_claims,
)

WINDOWS = ScrapeWindows(scrape_seconds=5)
TRUTH = Truth(rank=2, phase="backward", from_wall_seconds=100.0, until_wall_seconds=160.0)
FIRING = ReceivedPage(
    status="firing",
    alert="JobLosing",
    rank="2",
    phase="backward",
    wall_seconds=130.0,
    summary="rank 2 is late",
    notified_within_seconds=60.0,
)
RESOLVED = replace(FIRING, status="resolved", wall_seconds=200.0)
HEADLINE = "Rank 2 was slow in backward."
VERDICT: dict[str, Any] = {"kind": "rank", "ranks": [2], "phase": "backward"}
RIGHT = Claims(pages=(FIRING, RESOLVED), verdict=VERDICT, headline=HEADLINE)


def holds(truth: Truth, claims: Claims) -> bool:
    return all(judge(truth, claims).values())


def test_the_truth_told_in_time_holds_and_a_slow_loader_shows_as_the_data_phase() -> None:
    assert holds(TRUTH, RIGHT)
    pages = (replace(FIRING, phase="data"), replace(RESOLVED, phase="data"))
    verdict = {**VERDICT, "phase": "data"}
    claims = Claims(pages=pages, verdict=verdict, headline="Rank 2 was slow in data.")
    assert holds(replace(TRUTH, phase="loader"), claims)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(RIGHT, pages=()),
        replace(RIGHT, pages=(FIRING,)),
        replace(RIGHT, pages=(FIRING, FIRING, RESOLVED)),
        replace(RIGHT, pages=(replace(FIRING, wall_seconds=161.0), RESOLVED)),
        replace(RIGHT, pages=(replace(FIRING, wall_seconds=99.0), RESOLVED)),
        replace(RIGHT, pages=(FIRING, replace(RESOLVED, wall_seconds=150.0))),
        replace(RIGHT, pages=(replace(FIRING, rank="1"), replace(RESOLVED, rank="1"))),
        replace(RIGHT, pages=(replace(FIRING, phase="forward"), RESOLVED)),
        replace(RIGHT, pages=(FIRING, RESOLVED, replace(FIRING, rank="0"))),
        replace(RIGHT, pages=(FIRING, RESOLVED, replace(FIRING, alert="X", phase=""))),
        replace(RIGHT, verdict={**VERDICT, "ranks": [1]}),
        replace(RIGHT, verdict={**VERDICT, "ranks": [1, 2]}),
        replace(RIGHT, verdict={**VERDICT, "phase": "forward"}),
        replace(RIGHT, verdict={**VERDICT, "kind": "nobody"}),
        replace(RIGHT, headline="Nobody was slow."),
        replace(RIGHT, headline="Rank 1 was slow in backward."),
        replace(RIGHT, headline=""),
    ],
)
def test_anything_else_fails(wrong: Claims) -> None:
    assert not holds(TRUTH, wrong)


def test_a_healthy_run_needs_no_page_and_nobody() -> None:
    healthy = replace(TRUTH, rank=None)
    nobody = replace(
        RIGHT,
        pages=(),
        verdict={"kind": "nobody", "ranks": [], "phase": None},
        headline="Nobody was slow.",
    )
    assert holds(healthy, nobody)
    assert not holds(healthy, replace(nobody, pages=(FIRING,)))
    assert not holds(healthy, RIGHT)


def test_claims_are_read_from_the_files_of_pager_and_report(tmp_path: Path) -> None:
    (tmp_path / "stack").mkdir()
    alert = {
        "status": "firing",
        "labels": {"alertname": "A", "job_id": "demo", "rank": "1"},
        "annotations": {"summary": "s", "notified_within": "45s"},
    }
    other = {**alert, "labels": {"alertname": "B", "job_id": "another"}}
    lines = [
        {
            "receiver": "pager",
            "time": "2026-01-01T00:00:05+00:00",
            "status": "firing",
            "alerts": [alert, other],
        },
        {
            "receiver": "tickets",
            "time": "2026-01-01T00:00:06+00:00",
            "status": "firing",
            "alerts": [alert],
        },
    ]
    (tmp_path / "stack" / "pages.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (tmp_path / "report.json").write_text(json.dumps({"verdict": VERDICT}))
    (tmp_path / "report.html").write_text(f"<h1 class='x'><span>job demo:</span>\n {HEADLINE}</h1>")
    claims = read_claims(tmp_path)
    assert [(page.alert, page.rank) for page in claims.pages] == [("A", "1")]
    assert claims.pages[0].wall_seconds == 1767225605.0
    assert claims.headline == HEADLINE


def test_the_same_seed_draws_the_same_script_and_any_rank_can_be_drawn() -> None:
    def drawn(seed: int) -> tuple[int | None, int]:
        script = draw_script(random.Random(seed), 0.1, 4, ("one", "backward"), WINDOWS)
        return script.rank, script.from_step

    assert drawn(3) == drawn(3)
    assert {drawn(seed)[0] for seed in range(40)} == {0, 1, 2, 3}
    assert len({drawn(seed)[1] for seed in range(40)}) > 20
    assert fault_flags(draw_script(random.Random(1), 0.1, 4, ("none", "backward"), WINDOWS)) == ()
