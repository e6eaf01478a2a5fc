"""Layouts on CPU against one process: the same losses, and the same norms of the gradient.

AdamW divides the scale of a gradient out, so that a wrong scale does not show in the loss but in
the norm. ``trainer_validation.parallel_matrix`` has the tolerances and their reasons.
"""

from pathlib import Path

import pytest
from trainer_validation.parallel_matrix import (
    CASES,
    DENSE_REFERENCE,
    MOE_REFERENCE,
    Case,
    Run,
    difference,
    run,
)

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]

CASE_BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def dense(module_memory: Path) -> Run:
    return run(DENSE_REFERENCE, module_memory / "dense")


@pytest.fixture(scope="module")
def experts(module_memory: Path) -> Run:
    return run(MOE_REFERENCE, module_memory / "experts")


def assert_equal(case: Case, result: Run, reference: Run) -> None:
    assert difference(result.losses, reference.losses) < case.tolerance
    assert difference(result.norms, reference.norms, relative=True) < case.tolerance


@pytest.mark.parametrize(
    "name",
    [
        "pp interleaved",
        *(
            pytest.param(x, marks=pytest.mark.release)
            for x in ("ddp", "hsdp", "fsdp x tp", "pp 1f1b")
        ),
    ],
)
def test_a_dense_strategy_has_the_loss_curve_of_one_process(
    module_memory: Path, dense: Run, name: str
) -> None:
    case = CASE_BY_NAME[name]
    assert_equal(case, run(case, module_memory / name), dense)


@pytest.mark.parametrize("name", ["ep", pytest.param("dp x ep", marks=pytest.mark.release)])
def test_experts_on_several_ranks_have_the_loss_curve_of_experts_on_one(
    module_memory: Path, experts: Run, name: str
) -> None:
    case = CASE_BY_NAME[name]
    assert_equal(case, run(case, module_memory / case.name), experts)


def test_a_run_resumes_in_another_strategy_on_other_ranks(module_memory: Path, dense: Run) -> None:
    case = CASE_BY_NAME["tp"]
    resumed = run(case, module_memory / "changed", resume_from=module_memory / "dense")
    after = {step: loss for step, loss in dense.losses.items() if step in resumed.losses}
    assert sorted(after) == [5, 6, 7, 8]
    assert difference(resumed.losses, after) < case.tolerance
