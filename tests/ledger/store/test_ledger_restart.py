"""The life of a ledger: killed while nodes deliver, started again, scraped all the time."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from servers import wait_until

from lockstep_catalogue.ledger import JOBS_FINISHED, REQUEUES
from lockstep_ledger.command import ledger as command
from lockstep_ledger.store.database import open_store

from ..model.stored import differences
from ..service import JSON, LedgerProcess, ledger_process
from ..stories import Document, Story, delivery
from .test_ledger_store import job_stories

pytestmark = pytest.mark.timeout(180)
DEADLINE_SECONDS = 120.0


def until_taken(ledger: LedgerProcess, batches: list[list[Document]]) -> None:
    """Delivers in order, each batch again until it is answered, as a node does."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    with httpx.Client(timeout=30) as client:
        for batch in batches:
            while time.monotonic() < deadline:
                try:
                    answer = client.post(
                        f"{ledger.url}/api/events", content=delivery(batch), headers=JSON
                    )
                except httpx.HTTPError:
                    time.sleep(0.05)
                    continue
                assert answer.status_code == 200, answer.text
                break
            else:
                raise AssertionError("the ledger did not take a batch in time")


def test_a_ledger_that_is_killed_while_nodes_deliver_counts_every_job_once(tmp_path: Path) -> None:
    store = str(tmp_path / "ledger.db")
    stories = job_stories(24, seed=7)
    with ledger_process(store, "--max-rate", "100000") as ledger:
        nodes = []
        for node in range(4):
            # Small batches: the kills shall fall between them and into them.
            batches = [
                story.events[first : first + 3]
                for story in stories[node::4]
                for first in range(0, len(story.events), 3)
            ]
            nodes.append(threading.Thread(target=until_taken, args=(ledger, batches)))
        for thread in nodes:
            thread.start()
        time.sleep(0.2)
        ledger.kill()
        ledger.start()
        for thread in nodes:
            thread.join()
        listed = httpx.get(f"{ledger.url}/api/jobs?limit=500").json()["jobs"]
        assert sorted(job["job_id"] for job in listed) == sorted(s.job_id for s in stories)
        assert ledger.stop() == 0
    assert differences(open_store(store, read_only=True)) == []


def test_a_busy_address_is_refused_and_a_second_ledger_on_the_store_too(tmp_path: Path) -> None:
    store = str(tmp_path / "ledger.db")
    with ledger_process(store) as ledger:
        for port, sentence in ((0, "has a running ledger; stop it first"),
                               (ledger.port, "cannot bind")):  # fmt: skip
            words = ["serve", "--store", store, "--listen", f"127.0.0.1:{port}"]
            second = CliRunner().invoke(command, words)
            assert second.exit_code == 2
            assert sentence in second.output


def write_config(folder: Path, target: int) -> Path:
    """Configuration of a Prometheus that scrapes the ledger each second."""
    job = {"job_name": "ledger", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = folder / "prometheus.yml"
    config.write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}), encoding="utf-8"
    )
    return config


def query(client: httpx.Client, expression: str) -> float:
    answer = client.get("/api/v1/query", params={"query": expression}).raise_for_status()
    result = answer.json()["data"]["result"]
    return float(result[0]["value"][1]) if result else float("nan")


def wait_for(client: httpx.Client, expression: str, least: float) -> None:
    wait_until(lambda: query(client, expression) >= least, DEADLINE_SECONDS,
               lambda: f"{expression} stays below {least}", pause=0.25)  # fmt: skip


@pytest.mark.server
@pytest.mark.release
def test_increase_is_the_truth_over_a_kill_a_second_import_and_a_storm_of_requeues(
    tmp_path: Path, serve_prometheus: Callable[[Path], AbstractContextManager[str]]
) -> None:
    store = str(tmp_path / "ledger.db")
    finished = f"sum({JOBS_FINISHED.name})"
    with (
        ledger_process(store, "--scrape-interval", "1s", "--max-rate", "1000") as ledger,
        serve_prometheus(write_config(tmp_path, ledger.port)) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        wait_for(client, finished, 0)
        now = time.time() - 3000
        jobs = [Story(f"job-{n}", now=now).start(num_nodes=1).after(9).end() for n in range(5)]
        until_taken(ledger, [story.events for story in jobs])
        wait_for(client, finished, 5)
        ledger.kill()
        ledger.start()
        until_taken(ledger, [story.events for story in jobs])  # the same again
        storm = Story("storm", now=now)
        for attempt in range(20):
            storm.start(attempt=attempt, num_nodes=1).after(9)
            storm.end("failed", attempt=attempt, failure_class="infra").after(9)
        until_taken(ledger, [storm.events[first : first + 8] for first in range(0, 80, 8)])
        wait_for(client, finished, 6)
        wait_for(client, f"sum({REQUEUES.name})", 19)
        # Every group is new here, and Prometheus sees nothing of a series that is born at 1.
        # It extends what it sees to the range's ends, by the share of one scrape at most.
        scrape = 1 / (query(client, f"min(count_over_time({JOBS_FINISHED.name}[10m]))") - 1)
        for metric, truth in ((JOBS_FINISHED, 6), (REQUEUES, 19)):
            grown = query(client, f"sum(increase({metric.name}[10m]))")
            assert grown == pytest.approx(truth, rel=1.1 * scrape)
        assert query(client, f"sum(resets({JOBS_FINISHED.name}[10m]))") == 0
        assert query(client, finished) == 6
