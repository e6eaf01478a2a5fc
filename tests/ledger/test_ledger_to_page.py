"""From the events of nodes to a page: what a ledger serves is what the rules of objectives read."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep_alerts.alert import OBJECTIVES
from lockstep_alerts.output import rule_groups
from lockstep_alerts.reading.model import Delivery
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue.ledger import SLO_EVENTS

from .service import application
from .stories import Story, delivery

NUM_GPUS, HOURS = 16, 2


def hanging(job_class: str) -> Story:
    """A job that has stood still for two hours, and says so each minute."""
    begin = time.time() - HOURS * 3600 - 60
    fields: dict[str, Any] = {"num_nodes": 1, "num_gpus": NUM_GPUS, "job_class": job_class}
    story = Story(job_id=f"job-{job_class}", now=begin).start(**fields)
    for minute in range(1, HOURS * 60 + 1):
        seconds = {"hang": 60.0 * minute * NUM_GPUS}
        story.after(60).add("goodput", rank_seconds=seconds, num_gpus=NUM_GPUS, num_ranks=NUM_GPUS)
    return story


def scraped(tmp_path: Path) -> list[dict[str, str]]:
    """Every count of an objective in a scrape, unchanged for ten minutes."""
    with application(str(tmp_path / "ledger.db")) as (client, parts, _):
        for job_class in ("", "large"):
            events = hanging(job_class).events
            assert client.post("/api/events", content=delivery(events)).status_code == 200
        parts.windows.refresh()
        lines = client.get("/metrics").text.splitlines()
    counts = [line.rpartition(" ") for line in lines if line.startswith(SLO_EVENTS.name + "{")]
    return [{"series": series, "values": f"{value}+0x40"} for series, _, value in counts]


@pytest.mark.promtool
def test_time_that_is_lost_is_in_the_objectives_by_the_ledgers_counts(tmp_path: Path) -> None:
    groups = rule_groups(OBJECTIVES, read_spec(spec_path()), Delivery())
    (tmp_path / OBJECTIVES.rules_file).write_text(yaml.safe_dump({"groups": groups}))
    share = 'max by (cluster, slo) (slo:sli_error:ratio_rate1h{slo="ettr"})'
    expected = [{"labels": '{cluster="east", slo="ettr"}', "value": 1}]
    test: dict[str, Any] = {
        "interval": "15s",
        "input_series": scraped(tmp_path),
        "promql_expr_test": [{"expr": share, "eval_time": "9m", "exp_samples": expected}],
    }
    document = {
        "rule_files": [OBJECTIVES.rules_file],
        "evaluation_interval": "1m",
        "group_eval_order": [group["name"] for group in groups],
        "tests": [test],
    }
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    command = ["promtool", "test", "rules", "tests.yaml"]
    done = subprocess.run(command, capture_output=True, check=False, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
