"""The loops, where a fault enters each of them, and the faults."""

from dataclasses import dataclass
from typing import Any

FAULTS = ("healthy", "stopped", "slow fetch", "slow forward", "killed", "raised")
SLOW_PHASE = {"stopped": None, "slow fetch": "data", "slow forward": "forward"}
ENDS = {"killed": "killed", "raised": "exception"}
"""Causes of the outcome table, by fault."""

SLOWER_BY = 0.5
"""Of the loop's usual step on this machine, by which a step of the slow rank takes longer."""
STOPPED_SECONDS, STOP_EVERY_SECONDS = 0.04, 0.2
FROM_SHARE = 0.3
"""Of the steps, after which the fault begins."""
SETTLING_STEPS = 10
"""That do not count for the usual step."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A script and the places where a fault enters it.

    Attributes:
        steps: of each rank, about: eight seconds of them or more where nothing else has the cores,
            for a stop in each 0.2 s must strike two dozen times before it is told from chance.
        fetch: method or function that makes a batch, or a dataset's ``__getitem__``.
        fetches: calls of it in a step; a dataset is called once a batch.
        workers: of the loader.
        forward: method in which the slow rank computes longer.
        forwards: calls of it in a step.
        starts_ranks: whether the script itself starts them.
    """

    steps: int
    fetch: str
    forward: str
    ranks: int = 2
    slow_rank: int = 1
    fetches: int = 1
    workers: int = 0
    forwards: int = 1
    starts_ranks: bool = False
    is_compiled: bool = False


_NET: dict[str, Any] = {"fetch": "Batches.read", "forward": "Net.forward"}
LOOPS: dict[str, Loop] = {
    "nanogpt": Loop(
        steps=450, fetch="Corpus.get_batch", fetches=2, forward="GPT.forward", forwards=2
    ),
    "mingpt_ddp": Loop(
        steps=320, fetch="CharDataset.__getitem__", workers=1, forward="GPT.forward",
        ranks=4, slow_rank=2,
    ),
    "ddp_torchrun": Loop(steps=1200, fetch="ToyDataset.__getitem__", forward="Net.forward"),
    "fsdp2": Loop(steps=280, fetch="make_batch", forward="Transformer.forward"),
    "fsdp2_tensor_parallel": Loop(
        steps=180, fetch="make_batch", forward="Model.forward", ranks=4, slow_rank=2
    ),
    "imagenet": Loop(
        steps=1200, fetch="Images.__getitem__", workers=2, forward="ResNet.forward", slow_rank=0
    ),
    "word_language_model": Loop(steps=360, fetch="get_batch", forward="RNNModel.forward"),
    "dcgan": Loop(
        steps=1000, fetch="Pictures.__getitem__", workers=2, forward="Generator.forward"
    ),
    "train_function": Loop(
        steps=1900, fetch="Fashion.__getitem__", forward="Classifier.forward",
        ranks=3, slow_rank=2, starts_ranks=True,
    ),
    "engine": Loop(
        steps=2200, fetch="Samples.__getitem__", fetches=2, forward="Net.forward", forwards=2
    ),
    "torchtitan_like": Loop(
        steps=240, fetch="Text.next_sample", fetches=8, forward="Transformer.forward", forwards=2,
        slow_rank=0,
    ),
    "lightning_fit": Loop(steps=1000, fetch="Samples.__getitem__", forward="Net.forward"),
    "hf_trainer": Loop(
        steps=1100, fetch="RandomTokens.__getitem__", forward="GPT2LMHeadModel.forward"
    ),
    "join_uneven": Loop(**_NET, steps=1200, ranks=3),
    "compiled": Loop(**_NET, steps=1200, is_compiled=True),
    "parameter_server": Loop(**_NET, steps=2400, ranks=4, slow_rank=2),
    "self_distillation": Loop(**_NET, steps=900),
    "own_pipeline": Loop(**_NET, steps=1200),
    "sharded_optimizer": Loop(**_NET, steps=500),
    "accelerated": Loop(**_NET, steps=400, fetches=2, forwards=2),
    "rollouts": Loop(**_NET, steps=400),
    "fabric_closure": Loop(**_NET, steps=700),
}  # fmt: skip
