"""The training loop, to be read top to bottom: a GPT on real text, by several ranks in lockstep."""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import lockstep
from lockstep_trainer.checkpoints.checkpointer import Checkpointer, facts_of
from lockstep_trainer.checkpoints.preemption import Preemption, handle_sigterm
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import batches_of, prefetch, windows_at
from lockstep_trainer.data.shards import Text, read_data
from lockstep_trainer.faults.parse import inject
from lockstep_trainer.layout.world import Layout, World, process_group
from lockstep_trainer.model.gpt import GPT
from lockstep_trainer.optimizer import adamw, learning_rate_at
from lockstep_trainer.parallel import STRATEGIES, layout_of, parallelize
from lockstep_trainer.parallel.parallel_model import ParallelModel
from lockstep_trainer.progress import Progress, Summary, Work, finite


def held_out_loss(
    model: ParallelModel, text: Text, config: TrainConfig, world: World, layout: Layout
) -> float:
    """Mean loss in nats per byte over windows spread evenly over the text; equal on all ranks.

    Every data rank scores the same number of windows, so that all run the same collectives.
    """
    last, batch = len(text) - 1 - config.sequence, config.samples_per_step
    # Rounded up: a rank without windows in a round would miss its collectives.
    rounds = math.ceil(config.eval_windows / (batch * layout.data_ranks))
    starts = np.linspace(0, last, rounds * batch * layout.data_ranks).astype(np.int64)
    own_starts = starts[layout.data_rank(world.rank) :: layout.data_ranks].reshape(rounds, batch)
    # float64: a float32 sum over many windows would lose digits of the loss.
    total = torch.zeros(2, dtype=torch.float64, device=world.device)
    for part in model.parts:
        part.eval()
    for batch_starts in own_starts:
        x, y = windows_at(text, batch_starts, config.sequence)
        total[0] += model.loss(x.to(world.device), y.to(world.device))
        total[1] += 1
    for part in model.parts:
        part.train()
    dist.all_reduce(total)
    return float(total[0] / total[1])  # sync point: waits for the GPU


def train(config: TrainConfig, world: World) -> Summary:
    """Trains to the last step and returns the result; every rank gets the same loss."""
    with process_group(world, timeout_seconds=config.timeout, threads=config.threads) as joined:
        preemption = Preemption(
            joined,
            every=config.stop_check_every,
            last=config.steps,
            same_step=not STRATEGIES[config.strategy].is_independent,
        )
        with handle_sigterm(preemption, config.grace):
            return _train(config, joined, preemption)


def _train(config: TrainConfig, world: World, preemption: Preemption) -> Summary:
    # ---------------------------------------------------------------------------------------------
    # Data: the text, and the part of it that this rank sees.
    layout = layout_of(config, world.size)
    corpus = read_data(config.data, checksums=False)  # check_run has verified them
    global_batch = config.samples_per_step * layout.data_ranks

    # ---------------------------------------------------------------------------------------------
    # Model: the same weights on every rank by the seed, then parallelised; and its optimizer.
    torch.manual_seed(config.seed)
    gpt = GPT(**config.model_shape, recompute=config.recompute).to(world.device)
    work = Work.of(gpt, config, world, global_batch=global_batch)
    progress = Progress(world, work, log_every=config.log_every)
    progress.say(f"corpus of {corpus.num_bytes} bytes, sha256 {corpus.sha256}")
    progress.say(
        f"global batch of {global_batch} samples = --batch {config.batch} "
        f"x --accumulate {config.accumulate} x {layout.data_ranks} data ranks"
    )
    model = parallelize(gpt, config, world, layout)
    # After parallelize, which may replace parameters: the optimizer has to hold the final ones.
    optimizer = adamw(model.module.parameters())
    mesh = layout.coordinates(world.rank)
    monitor = lockstep.attach(model.forward_module, optimizer, schedule=model.schedule, mesh=mesh)

    monitor.describe(flops_per_token=work.flops_per_token, peak_flops=config.peak_flops)

    # ---------------------------------------------------------------------------------------------
    # Resume: the state of an earlier run, if there is one.
    facts = facts_of(config, layout, corpus_sha256=corpus.sha256)
    checkpoints = Checkpointer(config, facts, world, progress.say, monitor)
    done = checkpoints.restore(model, optimizer)

    # ---------------------------------------------------------------------------------------------
    # Loop. The monitor wraps the batches, so that the wait for the loader is a phase of the step.
    batches = batches_of(config, corpus, layout, rank=world.rank, done=done)
    prefetched = prefetch(batches, config.prefetch)
    faulty = inject(config, world, model.parts, optimizer, prefetched)
    held_out: dict[int, float] = {}
    stopped_after: int | None = None
    # Before the end nobody waits for a worker of a parameter server, an evaluation neither.
    eval_every = 0 if STRATEGIES[config.strategy].is_independent else config.eval_every
    exchange = partial(model.exchange, monitor=monitor)
    exchange(done)
    progress.start()
    for step, x, y in monitor.prepare(faulty):
        learning_rate = learning_rate_at(step, config)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate

        # Forward and backward; the last batch of the step averages the gradients.
        loss = model.forward_backward(x.to(world.device), y.to(world.device))
        norm = model.clip(config.clip)  # a collective where parameters are sharded
        optimizer.step()
        optimizer.zero_grad()
        # Parameters, where the ranks train asynchronously. The first worker of a parameter server
        # that is through ends the run of all.
        reached = exchange(step)

        # No .item() here: the monitor copies GPU tensors without a wait and reads them later.
        # Each rank reports what it has seen; sums leave out the ranks that see the same as another.
        num_samples = len(x)
        stats: dict[str, Any] = {
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": learning_rate,
        }
        stats |= {"samples": num_samples, "tokens": num_samples * config.sequence}
        monitor.step(step=step, **stats)
        progress.step(step, loss.item)  # sync point: calls .item() at a step with a progress line

        # Checkpoint: when due, or before leaving. A failure is counted, and training goes on.
        stopping = preemption.should_stop(step)  # one round trip to the store, no GPU wait
        checkpoints.after(step, model, optimizer, stopping=stopping)
        if stopping:
            stopped_after = step
            break

        # Evaluation: when due, on text that is never trained on. Sync point: it returns a float.
        if config.due(reached, eval_every):
            with monitor.phase("eval"):
                held_out[reached] = held_out_loss(model, corpus.held_out, config, world, layout)
            progress.say(f"step {reached} held-out loss {held_out[reached]:.4f} nats per byte")
        if reached > step:
            break

    # ---------------------------------------------------------------------------------------------
    # Result. The page says that the loop has ended: what fails from here on is only the leaving.
    monitor.close()
    return Summary(
        loss=finite(held_out.get(config.steps)),
        losses={str(step): finite(loss) for step, loss in held_out.items()},
        unigram_entropy=corpus.unigram_entropy,
        steps=config.steps,
        stopped_after=stopped_after,
        resumed_from=done,
        ranks=world.size,
        parameters=work.parameters,
        corpus_bytes=corpus.num_bytes,
        corpus_sha256=corpus.sha256,
        global_batch=global_batch,
        tokens_per_second=progress.tokens_per_second,
        mfu_ratio=progress.mfu_ratio,
    )
