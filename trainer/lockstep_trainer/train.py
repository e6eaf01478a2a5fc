"""The training loop, to be read top to bottom: a GPT on real text, by several ranks in lockstep."""

import math

import torch

import lockstep
from lockstep_trainer.checkpoint import CheckpointError, Checkpoints, facts_of
from lockstep_trainer.config import TrainConfig
from lockstep_trainer.data import batches_of, read_corpus, standard_library
from lockstep_trainer.evaluate import held_out_loss
from lockstep_trainer.faults import fault_of, inject
from lockstep_trainer.mesh import Layout
from lockstep_trainer.model import GPT
from lockstep_trainer.parallel import STRATEGIES
from lockstep_trainer.progress import Progress, Summary, finite
from lockstep_trainer.world import World, joined

_LAST_LEARNING_RATE_RATIO = 0.1


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Linear warm-up to the peak, then a cosine down to a tenth of it; steps count from 1."""
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    way = (step - config.warmup) / max(1, config.steps - config.warmup)
    low = _LAST_LEARNING_RATE_RATIO
    return config.learning_rate * (low + (1 - low) * (1 + math.cos(math.pi * way)) / 2)


def train(config: TrainConfig, world: World) -> Summary:
    """Trains to the last step and tells the result; every rank gets the same loss."""
    with joined(world, timeout_seconds=config.timeout, threads=config.threads):
        return _train(config, world)


def _train(config: TrainConfig, world: World) -> Summary:
    # The text, and the part of it that this rank sees.
    layout = Layout.fill(world.size, config.dp)
    corpus = read_corpus(standard_library())
    tokens_per_step = layout.dp * config.batch * config.sequence
    progress = Progress(world, log_every=config.log_every, tokens_per_step=tokens_per_step)
    progress.say(f"corpus of {corpus.num_bytes} bytes, sha256 {corpus.sha256}")

    # The model, shared among the ranks, and its optimizer.
    torch.manual_seed(config.seed)
    gpt = GPT(**config.model_shape).to(world.device)
    model = STRATEGIES[config.strategy](gpt, world, layout)
    optimizer = torch.optim.AdamW(gpt.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    monitor = lockstep.attach(model, optimizer, mesh=layout.coordinates(world.rank))

    # Where an earlier run stopped.
    facts = facts_of(config, corpus_sha256=corpus.sha256, num_ranks=layout.dp)
    checkpoints = Checkpoints(config, facts, world, progress.say)
    done = checkpoints.restore(gpt, optimizer)

    batches = batches_of(config, corpus, layout, rank=world.rank, done=done)
    faulty = inject(fault_of(config, world.rank), gpt, optimizer, batches)
    held_out = math.nan
    progress.start()
    for step, x, y in monitor.prepare(faulty):
        # Forward, backward with the averaging of gradients in it, optimizer.
        learning_rate = learning_rate_at(step, config)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        loss = model(x.to(world.device), y.to(world.device))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(gpt.parameters(), config.clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()
        told = {"loss": loss.detach(), "gradient_norm": norm, "learning_rate": learning_rate}
        monitor.step(step=step, **told, tokens=x.numel(), samples=len(x))
        progress.step(step, loss.item)

        # Once in a while: save. A failed attempt is told and counted, and training goes on.
        if checkpoints.due(step):
            try:
                with monitor.checkpoint(step=step):
                    checkpoints.save(step, gpt, optimizer)
            except CheckpointError as error:
                progress.say(str(error))

        # Once in a while, and after the last step: how good is it on text that it never saw?
        if config.due(step, config.eval_every):
            with monitor.phase("eval"):
                held_out = held_out_loss(gpt, corpus.held_out, config, world)
            progress.say(f"step {step} held-out loss {held_out:.4f} nats per byte")

    return Summary(
        loss=finite(held_out),
        unigram_entropy=corpus.unigram_entropy,
        steps=config.steps,
        resumed_from=done,
        ranks=world.size,
        parameters=sum(parameter.numel() for parameter in gpt.parameters()),
        corpus_bytes=corpus.num_bytes,
        corpus_sha256=corpus.sha256,
        tokens_per_second=progress.tokens_per_second,
    )
