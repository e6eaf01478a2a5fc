"""Where a forward is seen: DDP's in its class, any other by a hook."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep

from .watched import page_in, watched

pytestmark = pytest.mark.usefixtures("single_rank_group")
STEPS = 12


def phase_in_call(root: Path, model: Any) -> str | None:
    """The phase in the page while the inner model runs."""
    phases = []
    hook = model.module.register_forward_pre_hook(lambda *_: phases.append(page_in(root).phase))
    model(torch.randn(2, 8))
    hook.remove()
    (phase,) = phases
    return phase


def test_ddp_is_watched_without_a_hook_and_another_model_is_not_watched(root: Path) -> None:
    model, other = (DistributedDataParallel(nn.Linear(8, 8)) for _ in range(2))
    monitor = watched(root, model)
    assert not model._forward_pre_hooks
    monitor.enter_phase("data")
    assert phase_in_call(root, model) == "forward"
    monitor.enter_phase("eval")
    assert phase_in_call(root, other) == "eval"


def test_a_hook_of_the_users_on_ddp_has_ours_in_front_of_it(root: Path) -> None:
    model, phases = DistributedDataParallel(nn.Linear(8, 8)), []
    model.register_forward_pre_hook(lambda *_: phases.append(page_in(root).phase))
    monitor = watched(root, model)
    monitor.enter_phase("data")
    model(torch.randn(2, 8))
    assert phases == ["forward"]


def test_models_attached_one_after_the_other_wrap_the_class_once(root: Path) -> None:
    kind: Any = DistributedDataParallel
    first = DistributedDataParallel(nn.Linear(8, 8))
    watched(root, first, job_id="first").close()
    wrapper = kind._pre_forward
    second = DistributedDataParallel(nn.Linear(8, 8))
    monitor = watched(root, second)
    assert kind._pre_forward is wrapper
    monitor.enter_phase("eval")
    assert phase_in_call(root, first) == "eval"
    assert phase_in_call(root, second) == "forward"


def test_a_model_attached_again_is_watched_by_the_later_monitor_only(root: Path) -> None:
    model = DistributedDataParallel(nn.Linear(8, 8))
    watched(root, model, job_id="first").enter_phase("eval")
    monitor = watched(root, model)
    monitor.enter_phase("data")
    assert phase_in_call(root, model) == "forward"
    assert page_in(root, "first").phase == "eval"


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_ddp_that_is_compiled_after_it_is_watched_has_no_graph_broken_by_us(root: Path) -> None:
    from torch._dynamo.utils import counters  # noqa: PLC0415  # loads all of dynamo

    reasons = []
    for is_watched in (False, True):
        torch.compiler.reset()
        counters.clear()
        model = DistributedDataParallel(nn.Linear(8, 8))
        monitor = watched(root, model) if is_watched else lockstep.disabled()
        compiled: Any = torch.compile(model, backend="eager")
        for _ in range(STEPS):
            compiled(torch.randn(2, 8)).square().mean().backward()
            monitor.step()
        reasons.append(set(counters["graph_break"]))  # DDP has some of its own
    assert reasons[0] == reasons[1]
    assert page_in(root).state["steps"] == STEPS
