"""The whole state of a run out of all its ranks' shards and stages, and back into them.

It is the same whatever the layout: parameters by name, and by name what the optimizer keeps.
"""

from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule

from lockstep_trainer.parallel.shared import SharedModel

State: TypeAlias = dict[str, dict[str, Any]]

_WHOLE = StateDictOptions(full_state_dict=True)


def gather_state(model: SharedModel, optimizer: torch.optim.Optimizer) -> State:
    """The state of all ranks, in the memory of the CPU; every rank must ask, rank 0 gets all."""
    _shard_again(model)
    kept: Any = get_optimizer_state_dict(model.module, optimizer, options=_WHOLE)["state"]
    weights = get_model_state_dict(model.module, options=_WHOLE)
    mine: State = {"model": _on_cpu(weights), "optimizer": _on_cpu(kept)}
    if model.stages is None:
        return mine
    stages: list[Any] = [None] * dist.get_world_size(model.stages)
    dist.all_gather_object(stages, mine, group=model.stages)
    return {kind: {n: v for one in stages for n, v in one[kind].items()} for kind in mine}


def _shard_again(model: SharedModel) -> None:
    """Frees what an evaluation, with no backward after it, left gathered."""
    for module in (module for part in model.parts for module in part.modules()):
        if isinstance(module, FSDPModule):
            module.reshard()


def _on_cpu(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _on_cpu(inner) for name, inner in value.items()}
    return value.cpu() if isinstance(value, torch.Tensor) else value


def scatter_state(state: State, model: SharedModel, optimizer: torch.optim.Optimizer) -> None:
    """Puts into a rank's model and optimizer what it holds of the whole state."""
    own = get_model_state_dict(model.module).keys()
    weights = {name: state["model"][name] for name in own}
    set_model_state_dict(model.module, weights, options=_WHOLE)
    groups: Any = get_optimizer_state_dict(model.module, optimizer)["param_groups"]
    kept = {name: state["optimizer"][name] for group in groups for name in group["params"]}
    set_optimizer_state_dict(
        model.module, optimizer, {"state": kept, "param_groups": groups}, options=_WHOLE
    )
