"""Accelerators of every vendor and claim; clocks; ids."""

from email.utils import formatdate

import pytest

from lockstep_ledger.commands.follow_kubernetes import _read_selector
from lockstep_ledger.feeds.kubernetes.cluster_state import ClusterState
from lockstep_ledger.feeds.kubernetes.feed import own_id
from lockstep_ledger.feeds.kubernetes.job_events import Job
from lockstep_ledger.feeds.kubernetes.objects import (
    asks_in_template,
    count_accelerators,
    count_claimed,
)
from lockstep_ledger.feeds.kubernetes.server import ServerClock

from .objects import NOW


@pytest.mark.parametrize(
    ("resource", "number"),
    [
        ("nvidia.com/gpu", 2), ("nvidia.com/mig-1g.10gb", 2), ("nvidia.com/gpu.shared", 2),
        ("amd.com/gpu", 2), ("gpu.intel.com/i915", 2), ("habana.ai/gaudi", 2),
        ("google.com/tpu", 2),
        ("aws.amazon.com/neuroncore", 2), ("example.com/gpu", 2),
        ("cpu", 0), ("nvidia.com/hostdev", 0), ("rdma/hca", 0), ("memory", 0),
    ],
)  # fmt: skip
def test_resources_that_are_accelerators(resource: str, number: int) -> None:
    assert count_accelerators({"limits": {resource: "2"}}) == number
    assert asks_in_template({"tasks": [{"x": {"resources": {"limits": {resource: 2}}}}]}) == bool(
        number
    )


def test_devices_of_a_claim_count_once_they_are_allocated_and_as_asked_before() -> None:
    requested = {
        "requests": [{"name": "a", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}]
    }
    assert count_claimed({"spec": {"devices": requested}}) == 4
    results = [
        {"driver": "gpu.nvidia.com"},
        {"driver": "gpu.nvidia.com"},
        {"driver": "net.example.com"},
    ]
    status = {"allocation": {"devices": {"results": results}}}
    assert count_claimed({"spec": {"devices": requested}, "status": status}) == 2


@pytest.mark.parametrize(
    ("ahead", "corrected"), [(120.0, 0.0), (-120.0, 0.0), (3600.0, 0.0), (0.3, 0.3), (-0.4, -0.4)]
)
def test_the_servers_clock_corrects_one_that_is_off(ahead: float, corrected: float) -> None:
    """A feed whose clock agrees with the server's to a second keeps its own."""
    clock = ServerClock(lambda: NOW + 0.5 + ahead)
    clock.note(formatdate(int(NOW + 0.5), usegmt=True))
    for date in ("", "yesterday", "Wed, 99 Nov 2026 10:26:40 GMT"):
        clock.note(date)
    assert clock.now() == pytest.approx(NOW + 0.5 + corrected, abs=0.6)


def test_an_id_holds_two_hundred_characters() -> None:
    job = Job("0123456789", "n" * 63, "m" * 253, "pytorchjobs.kubeflow.org", 0.0)
    assert len(own_id(job)) == 200
    assert own_id(job).endswith("@01234567")
    job.name = "bert"
    assert own_id(job) == f"{'n' * 63}/pytorchjob/bert"


@pytest.mark.parametrize("text", ["=x", "a==b", "a b=c", "a=b,,=d"])
def test_a_selector_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="--selector"):
        _read_selector(text)


def test_a_selector_admits_labels() -> None:
    state = ClusterState(_read_selector("team=ours,train"))
    assert state._admits({"team": "ours", "train": ""})
    assert not state._admits({"team": "ours"})
    assert not state._admits({"team": "theirs", "train": ""})
