"""A GPT on characters: batches cut from a token array, micro-steps, an evaluation by rank 0."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import lockstep

STEPS, EVAL_EVERY, EVAL_BATCHES, MICRO_STEPS, WARM_UP = 450, 50, 4, 2, 20
VOCABULARY, BLOCK, WIDTH, HEADS, LAYERS, BATCH = 65, 64, 64, 4, 3, 6


class Corpus:
    """Characters of a text, split for training and evaluation."""

    def __init__(self) -> None:
        tokens = torch.randint(VOCABULARY, (200_000,))
        self.splits = {"train": tokens[:180_000], "val": tokens[180_000:]}

    def get_batch(self, split: str) -> tuple[Tensor, Tensor]:
        """Random windows and the same shifted by one, each [batch, block]."""
        tokens = self.splits[split]
        starts = torch.randint(len(tokens) - BLOCK - 1, (BATCH,)).tolist()
        x = torch.stack([tokens[start : start + BLOCK] for start in starts])
        y = torch.stack([tokens[start + 1 : start + 1 + BLOCK] for start in starts])
        return x, y


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, block, width] to the same."""
        shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
        parts = self.qkv(self.norm_1(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return out


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """The loss over all places, shape []."""
        hidden = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate_loss(model: nn.Module, corpus: Corpus) -> dict[str, float]:
    """Mean loss of some batches of each split."""
    model.eval()
    losses = {
        split: sum(float(model(*corpus.get_batch(split))) for _ in range(EVAL_BATCHES))
        for split in corpus.splits
    }
    model.train()
    return {split: loss / EVAL_BATCHES for split, loss in losses.items()}


def learning_rate(step: int) -> float:
    """A warm-up, then a cosine."""
    if step < WARM_UP:
        return 1e-3 * (step + 1) / WARM_UP
    return 5e-4 * (1 + math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP)))


def main() -> None:
    """Trains in micro-steps."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337 + rank)
    corpus, raw_model = Corpus(), GPT()
    model = DistributedDataParallel(raw_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    monitor = lockstep.attach(model, optimizer)
    x, y = corpus.get_batch("train")
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        if step % EVAL_EVERY == 0 and rank == 0:
            with monitor.phase("eval"):
                losses = estimate_loss(raw_model, corpus)
            print(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        for micro_step in range(MICRO_STEPS):
            model.require_backward_grad_sync = micro_step == MICRO_STEPS - 1
            loss = model(x, y) / MICRO_STEPS
            with monitor.phase("data"):  # while a device would still compute the forward
                x, y = corpus.get_batch("train")
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        monitor.step(loss=MICRO_STEPS * loss.detach(), tokens=MICRO_STEPS * x.numel())
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
