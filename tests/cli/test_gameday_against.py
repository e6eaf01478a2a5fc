"""The dry run and the canary, against a real Alertmanager, Prometheus, ledger and agent."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep_cli.gameday.command import gameday
from lockstep_cli.gameday.stage import Stage, free_address


@pytest.mark.server
@pytest.mark.timeout(300)
def test_the_dry_run_proves_routes_ledger_and_canary_and_notifies_nobody(tmp_path: Path) -> None:
    with Stage(tmp_path, []) as stage:
        address, pages = free_address(), stage.memory / "pages"
        pages.mkdir()
        words = ("--listen", address, "--dir", str(pages), "--state", str(stage.memory / "state"))
        stage.start("agent", "agent", *words, "--scrape-interval", "5s")
        stage.target(address)
        options = [
            *("--against", stage.url("alertmanager"), "--prometheus", stage.url("prometheus")),
            *("--ledger", stage.ledger, "--dir", str(pages)),
        ]
        done = CliRunner().invoke(gameday, options, standalone_mode=False)
        assert done.return_value == 0, done.output
        steps = {line[10:34].strip(): line[:10].strip() for line in done.stdout.splitlines()}
        assert steps.pop("receivers") == "not tried"
        assert set(steps.values()) == {"ok"}, done.output
        assert {"watchdog", "route of page", "clean up", "ledger", "canary"} <= steps.keys()
        assert not stage.all_notifications()
        assert not list((pages / "jobs").iterdir())
    wrong = ["--against", f"http://{free_address()}"]
    assert CliRunner().invoke(gameday, wrong, standalone_mode=False).return_value == 1
