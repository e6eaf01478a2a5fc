"""The model says of thousands of histories what truly happened, where the events suffice."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from .deliveries import MODES, arrivals_of, deliver, last_moment
from .histories import make_history, make_two_slurms
from .job_history import Settings
from .ledger_model import Expected, expect, histories_of
from .reach import BRANCHES
from .truth import History
from .truth_checks import compare_to_truth

_QUICK, _ALL = range(120), range(2000)
_LATER_SECONDS = 60 * 86_400.0


def _expected(history: History, seed: int, mode: Any = "in_order") -> Expected:
    steps = deliver(history, mode, seed)
    return expect(arrivals_of(steps), Settings(), last_moment(steps) + _LATER_SECONDS)


def _mismatches(seed: int) -> list[str]:
    history = make_history(seed)
    by_id: dict[str, Mapping[str, Any]] = {
        name: record for record in _expected(history, seed).records.values()
        for name in record["ids"]
    }  # fmt: skip
    return [
        f"seed {seed} job {job.job_id}: {name}: truth {truth}, model {value}"
        for job in history.jobs
        for name, truth, value in compare_to_truth(job, by_id[job.job_id])
    ]


def test_the_model_says_what_happened() -> None:
    assert [line for seed in _QUICK for line in _mismatches(seed)] == []


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_the_model_says_what_happened_in_two_thousand_histories() -> None:
    assert [line for seed in _ALL for line in _mismatches(seed)] == []


@pytest.mark.parametrize("has_mishaps", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_the_way_of_delivery_changes_nothing(seed: int, has_mishaps: bool) -> None:
    history = make_history(seed, has_mishaps=has_mishaps)
    in_order = _expected(history, seed)
    for mode in MODES:
        found = _expected(history, seed, mode)
        assert (found.counters, found.rows) == (in_order.counters, in_order.rows)
        assert _without_names(found) == _without_names(in_order)


@pytest.mark.parametrize("seed", range(10))
def test_two_slurms_of_one_number_stay_apart_in_every_way_of_delivery(seed: int) -> None:
    history = make_two_slurms(seed)
    in_order = _expected(history, seed)
    assert len(in_order.records) == 2
    for mode in MODES:
        found = _expected(history, seed, mode)
        assert _without_names(found) == _without_names(in_order)


def _without_names(expected: Expected) -> list[str]:
    """The records without their ids: which of two Slurms has the number depends on the order."""
    return sorted(
        repr({name: value for name, value in record.items() if name not in {"job_id", "ids"}})
        for record in expected.records.values()
    )


def test_random_histories_reach_every_branch_of_the_contract() -> None:
    counts: Counter[str] = Counter(dict.fromkeys(BRANCHES, 0))
    for seed in range(200):
        steps = deliver(make_history(seed, has_mishaps=seed % 2 == 1), "in_order", seed)
        now = last_moment(steps) + _LATER_SECONDS
        for job in histories_of(arrivals_of(steps), Settings(), now):
            counts.update(name for name, reaches in BRANCHES.items() if reaches(job))
    assert {name: count for name, count in counts.items() if count < 3} == {}
