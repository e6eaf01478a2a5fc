"""The goodput of a job by state, as Prometheus records it from all its nodes."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep_catalogue import recorded, training

from ..cases.synthetic import JOB, Samples, Stretch, growing, one_rank_late, samples, training_job
from ..test_generated import promtool


def goodput_of(series: Mapping[str, float], seconds: int) -> list[Samples]:
    """Seconds by goodput state of a node's ranks, a second."""
    labels = {"instance": "n1:9400", **JOB, "node": "n1"}
    return [
        samples(training.GOODPUT_SECONDS, growing(Stretch(seconds, rate)), **labels, goodput=state)
        for state, rate in series.items()
    ]


def goodput_after(seconds: Mapping[str, float]) -> dict[str, object]:
    """The recorded goodput of a job by state after 380 s."""
    states = {
        "expr": f"round(sum by (goodput) ({recorded.GOODPUT_BY_STATE.name}), 0.001)",
        "eval_time": "380s",
        "exp_samples": [
            {"labels": f'{{goodput="{state}"}}', "value": value} for state, value in seconds.items()
        ],
    }
    return {"promql_expr_test": [states]}


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("communication", "expected"),
    [
        # Three ranks wait for half of each step; in communication is more than that, and less.
        (2.0, {"straggler_wait": 1.5, "communication": 0.5}),
        (1.0, {"straggler_wait": 1.0, "communication": 0.0}),
    ],
)
def test_waiting_for_a_straggler_is_a_goodput_state_taken_out_of_communication(
    tmp_path: Path, communication: float, expected: dict[str, float]
) -> None:
    spent = {"productive": 4 - communication, "communication": communication}
    series = training_job(one_rank_late(400, 2, {"data": 0.1})) + goodput_of(spent, 400)
    promtool(tmp_path, series, goodput_after({**expected, "productive": 4 - communication}))


@pytest.mark.promtool
def test_a_job_without_groups_of_ranks_has_its_goodput_as_its_pages_tell_it(tmp_path: Path) -> None:
    spent = {"productive": 3.0, "communication": 1.0}
    promtool(tmp_path, goodput_of(spent, 400), goodput_after(spent))
