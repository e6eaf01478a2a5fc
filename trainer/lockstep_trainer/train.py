"""The training loop, to be read top to bottom: a GPT on real text, by several ranks in lockstep."""

from typing import Any

import torch

import lockstep
from lockstep_trainer.checkpoints.checkpoint import Checkpoints, facts_of
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data.batches import batches_of
from lockstep_trainer.data.prefetch import prefetched
from lockstep_trainer.data.sources import read_data
from lockstep_trainer.evaluate import held_out_loss
from lockstep_trainer.faults import inject
from lockstep_trainer.model import GPT
from lockstep_trainer.optimizer import adamw, learning_rate_at
from lockstep_trainer.parallel import layout_of, share
from lockstep_trainer.preemption import Preemption, watched
from lockstep_trainer.progress import Progress, Summary, Work, finite
from lockstep_trainer.world import World, joined


def train(config: TrainConfig, world: World) -> Summary:
    """Trains to the last step and tells the result; every rank gets the same loss."""
    with joined(world, timeout_seconds=config.timeout, threads=config.threads) as together:
        preemption = Preemption(together, every=config.stop_check_every, last=config.steps)
        with watched(preemption, config.grace):
            return _train(config, together, preemption)


def _train(config: TrainConfig, world: World, preemption: Preemption) -> Summary:
    # The text, and the part of it that this rank sees.
    layout = layout_of(config, world.size)
    corpus = read_data(config.data, checksums=False)  # checked before any rank came here
    global_batch = config.samples_per_step * layout.data_ranks

    # The model, the same on every rank by its seed, then shared among them; and its optimizer.
    torch.manual_seed(config.seed)
    gpt = GPT(**config.model_shape, recompute=config.recompute).to(world.device)
    work = Work.of(gpt, config, world, global_batch=global_batch)
    progress = Progress(world, work, log_every=config.log_every)
    progress.say(f"corpus of {corpus.num_bytes} bytes, sha256 {corpus.sha256}")
    progress.say(
        f"global batch of {global_batch} samples = --batch {config.batch} "
        f"x --accumulate {config.accumulate} x {layout.data_ranks} data ranks"
    )
    model = share(gpt, config, world, layout)
    optimizer = adamw(model.module.parameters())
    mesh = layout.coordinates(world.rank)
    monitor = lockstep.attach(model.watched, optimizer, schedule=model.schedule, mesh=mesh)

    monitor.describe(flops_per_token=work.flops_per_token, peak_flops=config.peak_flops)

    # Where an earlier run stopped.
    facts = facts_of(config, layout, corpus_sha256=corpus.sha256)
    checkpoints = Checkpoints(config, facts, world, progress.say, monitor)
    done = checkpoints.restore(model, optimizer)

    batches = batches_of(config, corpus, layout, rank=world.rank, done=done)
    ahead = prefetched(batches, config.prefetch)
    faulty = inject(config, world, model.parts, optimizer, ahead)
    held_out: dict[int, float] = {}
    stopped_after: int | None = None
    progress.start()
    for step, x, y in monitor.prepare(faulty):
        # Forward and backward, with the averaging of gradients in it; optimizer.
        learning_rate = learning_rate_at(step, config)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        loss = model.forward_backward(x.to(world.device), y.to(world.device))
        norm = model.clip(config.clip)
        optimizer.step()
        optimizer.zero_grad()
        told: dict[str, Any] = {"loss": loss, "gradient_norm": norm, "learning_rate": learning_rate}
        counted = len(x) if layout.leads(world.rank) else 0
        monitor.step(step=step, **told, samples=counted, tokens=counted * config.sequence)
        progress.step(step, loss.item)

        # Once in a while, and when told to stop: save. A failure is counted, and training goes on.
        stopping = preemption.agreed(step)
        checkpoints.after(step, model, optimizer, stopping=stopping)
        if stopping:
            stopped_after = step
            break

        # Once in a while, and after the last step: how good is it on text that it never saw?
        if config.due(step, config.eval_every):
            with monitor.phase("eval"):
                held_out[step] = held_out_loss(model, corpus.held_out, config, world, layout)
            progress.say(f"step {step} held-out loss {held_out[step]:.4f} nats per byte")

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
