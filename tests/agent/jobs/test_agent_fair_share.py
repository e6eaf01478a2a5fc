"""What is bounded is shared fairly, a failing tick is survived, the network needs credentials."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click
import pytest
from servers import wait_until

from lockstep_agent import program
from lockstep_agent.collector import Reading
from lockstep_agent.exposition.series_budget import SeriesBudget
from lockstep_agent.exposition.text import Exposition, render
from lockstep_agent.options import Options
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.web.access_control import AccessControl
from lockstep_catalogue import agent, fabric, training
from lockstep_catalogue.series_budget import JOB_SERIES

TENANT, NEIGHBOUR = 65534, 65533


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_agent_that_can_sample_no_more_exits_and_says_why(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = threading.enumerate()
    sampler, ended = Sampler(lambda: (), tick_seconds=0.01), threading.Event()
    ticks: list[int] = []
    sample = sampler.sample

    def spoiled(timeout_seconds: float, *, always_judge: bool) -> Exposition:
        ticks.append(len(ticks))
        if ticks[-1] == 1:
            raise OverflowError("too large")
        return sample(timeout_seconds, always_judge=always_judge)

    monkeypatch.setattr(sampler, "sample", spoiled)
    sampler.start(on_end=ended.set)
    wait_until(lambda: len(ticks) > 3)
    assert not ended.is_set()  # one tick failed, and the next did not
    assert sampler.latest is not None
    assert b'failures_total{collector="sampler"} 1.0' in sampler.latest.text
    monkeypatch.setattr("lockstep_agent.runtime.sampler._GIVE_UP_SECONDS", 0.0)
    monkeypatch.setattr(sampler, "sample", lambda *_, **__: 1 // 0)
    assert ended.wait(30)
    assert "ZeroDivisionError" in sampler.failure
    monkeypatch.setattr("lockstep_agent.runtime.sampler.Sampler._run_ticks", lambda _: 1 // 0)
    with pytest.raises(click.ClickException, match="sampling has ended: its thread has ended"):
        program._serve(options)
    for thread in threading.enumerate():
        if thread.name == "sampler" and thread not in others:
            thread.join(30)  # its exception is reported here, and not in the next test


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104  # that is refused
def test_a_network_address_takes_credentials(host: str, options: Options, tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match="is open to the network: give --bearer-token-file"):
        program._serve(replace(options, listen=(host, 0)))
    (tmp_path / "tokens").write_text("0123456789abcdef\n")
    program._check_access(host, AccessControl(tokens=tmp_path / "tokens"))


def readings_of(jobs: dict[str, int]) -> tuple[Reading, ...]:
    return tuple(
        Reading(training.STEPS, ("east", job, str(rank)), 1)
        for job, num_ranks in jobs.items()
        for rank in range(num_ranks)
    )


def test_a_user_of_two_hundred_jobs_pushes_out_no_job_of_another_and_no_series_of_the_node() -> (
    None
):
    jobs = {f"fake-{number}": 10 for number in range(200)} | {"good": 16, "large": 600}
    owners = {"good": NEIGHBOUR, "large": 3}
    budget = SeriesBudget(16, 2000, owner_of=lambda job: owners.get(job, TENANT))
    node = tuple(Reading(fabric.NET_UP, (f"eth{number}",), 1) for number in range(1500))
    parts = (readings_of(jobs), node)
    for _ in range(2):
        ranks, of_node, about = budget.select(parts)
        assert of_node is node
        served = Counter(reading.labels[1] for reading in ranks)
        assert served["good"] == 16
        assert served["large"] == (JOB_SERIES - 16) // 2
        assert sum(served.values()) == JOB_SERIES
        values = {(each.metric, each.labels): each.value for each in about}
        assert values[agent.AGENT_SERIES_LEFT_OUT, ("share",)] == 2616 - JOB_SERIES
        assert values[agent.JOBS_CUT, ("series",)] == 201
    assert budget.select((readings_of({"good": 16}), node))[0] == readings_of({"good": 16})


def test_what_cannot_be_written_costs_its_family_and_no_other() -> None:
    bad = Reading(fabric.NET_UP, ("eth0",), 10**400)
    text = render([bad, *readings_of({"good": 1})], 1.0).text.decode()
    assert fabric.NET_UP.name + "{" not in text
    assert training.STEPS.name + "{" in text
