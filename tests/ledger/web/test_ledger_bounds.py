"""Scrapes and answers stay small whatever comes in."""

import time
from pathlib import Path
from typing import Any

from lockstep_catalogue import ledger

from ..service import application
from ..stories import Story, delivery


def test_clusters_that_the_ledger_was_not_started_for_are_summed_as_other(tmp_path: Path) -> None:
    with application(str(tmp_path / "l.db"), hold_seconds=0.0) as (client, parts, _):
        for number in range(30):
            cluster = Story(job_id="a", cluster=f"invented-{number}", now=time.time() - 9)
            cluster.start(num_nodes=1, project=f"p{number}").end()
            assert client.post("/api/events", content=delivery(cluster.events)).status_code == 200
        parts.windows.refresh()
        lines = client.get("/metrics").text.splitlines()
        assert not [line for line in lines if "invented" in line]
        clusters = {line.partition('cluster="')[2].partition('"')[0] for line in lines}
        assert clusters == {"", "east", "other"}
        started = f'{ledger.JOBS_STARTED.name}{{cluster="other"'
        counts = [float(line.split()[-1]) for line in lines if line.startswith(started)]
        assert sum(counts) == 30
        assert client.get("/api/jobs?cluster=invented-7").json()["jobs"][0]["project"] == "p7"


def test_an_answer_is_bounded_whatever_the_store_holds(tmp_path: Path) -> None:
    with application(str(tmp_path / "l.db")) as (client, _, _):
        long = Story(job_id="a", now=time.time() - 100).start(num_nodes=1)
        notes: dict[str, Any] = {f"note_{number}": "x" * 4000 for number in range(15)}
        for step in range(300):
            long.add("checkpoint_durable", step=step, **notes)
        for first in range(0, len(long.events), 15):
            body = delivery(long.events[first : first + 15])
            assert client.post("/api/events", content=body).status_code == 200
        answer = client.get("/api/jobs/a")
        assert len(answer.content) < 30 << 20
        timeline = answer.json()["timeline"]
        assert timeline[-1]["fields"]["step"] == 299
        assert len(timeline) < 150
        bad = [{**event, "fields": {"step": "x", **notes}} for event in long.events]
        bad = [{**event, "id": f"bad-{number}"} for number, event in enumerate(bad[2:])]
        for first in range(0, len(bad), 15):
            client.post("/api/events", content=delivery(bad[first : first + 15]))
        seen, after = 0, ""
        while after is not None:
            page = client.get(f"/api/dead-letters?limit=500&after={after}")
            assert len(page.content) < 10 << 20
            seen, after = seen + len(page.json()["dead_letters"]), page.json()["next"]
        assert seen == len(bad)
