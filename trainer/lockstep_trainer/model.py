"""The model: a small GPT over bytes, pre-norm, causal, its blocks dense or mixtures of experts."""

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lockstep_trainer.mixture import Mixture

VOCABULARY = 256
_INITIAL_SPREAD = 0.02
_BALANCE_WEIGHT = 0.01


class Attention(nn.Module):
    """Causal self-attention; the three projections of a head lie together, so heads can be cut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same shape, by as many heads as this rank holds."""
        batch, sequence, _ = x.shape
        projected = self.query_key_value(x).view(batch, sequence, -1, 3, self.head_width)
        q, k, v = projected.transpose(1, 2).unbind(dim=3)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, sequence, -1))
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer network or a mixture, each on normalised input and added.

    Args:
        experts: networks to choose from for each byte; 0 for one that all share.
        recompute: forget what happened inside the block and do it again in the backward.
    """

    def __init__(self, width: int, heads: int, *, experts: int, recompute: bool) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = Mixture(width, experts) if experts else _two_layers(width)
        self._recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same shape."""
        if self._recompute and self.training:
            again: Tensor = checkpoint(self._add, x, use_reentrant=False)
            return again
        return self._add(x)

    def _add(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        added: Tensor = x + self.mlp(self.norm_2(x))
        return added


def _two_layers(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width, bias=False),
        nn.GELU(),
        nn.Linear(4 * width, width, bias=False),
    )


class GPT(nn.Module):
    """Predicts the next byte.

    A pipeline cuts it into stages, each a GPT without the parts that stand in other stages; names
    of parameters stay those of the whole.

    Args:
        layers: number of blocks.
        width: size of the vector of one byte, a multiple of ``heads``.
        heads: attention heads per block.
        sequence: longest input, in bytes.
        experts: experts per block; 0 for a dense model.
        recompute: save memory by computing each block's inside again in the backward.
    """

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        sequence: int,
        experts: int = 0,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self._width = width
        self.bytes: nn.Module | None = nn.Embedding(VOCABULARY, width)
        self.places: nn.Module | None = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleDict(
            {
                str(number): Block(width, heads, experts=experts, recompute=recompute)
                for number in range(layers)
            }
        )
        self.norm: nn.Module | None = nn.LayerNorm(width)
        self.head: nn.Module | None = nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if "norm" not in name:
                adds = name.endswith(("out.weight", "mlp.2.weight", "experts.down"))  # as GPT-2
                spread = _INITIAL_SPREAD / (2 * layers) ** 0.5 if adds else _INITIAL_SPREAD
                nn.init.normal_(parameter, std=spread)

    def logits(self, x: Tensor) -> Tensor:
        """Scores of the next byte: (batch, sequence) to (batch, sequence, 256).

        A stage takes the stream of the one before it, and gives its own, where its ends are cut
        off: (batch, sequence, width).
        """
        stream = x
        if self.bytes is not None and self.places is not None:
            stream = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks.values():
            stream = block(stream)
        if self.norm is not None and self.head is not None:
            stream = self.head(self.norm(stream))
        return stream

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Mean loss in nats per byte; ``x`` and ``y`` are (batch, sequence), y one byte ahead.

        In training the loss of unbalanced experts is in it. Without ``y`` gives the logits.
        """
        logits = self.logits(x)
        if y is None:
            return logits
        loss = next_byte_loss(logits, y)
        mixtures = [module for module in self.modules() if isinstance(module, Mixture)]
        if self.training and mixtures:
            loss = loss + _BALANCE_WEIGHT * torch.stack([m.imbalance for m in mixtures]).mean()
        return loss

    def flops_per_token(self, sequence: int) -> float:
        """Model FLOPs to train on one byte, forward and backward, recomputation not counted.

        The usual 6 N + 12 x layers x width x sequence: N are the weights that a byte is multiplied
        with (no embeddings; of the experts those chosen), the rest is attention, not halved for
        its mask.
        """
        tables = sum(p.numel() for name, p in self.named_parameters() if name in _TABLES)
        idle = sum(m.num_idle_parameters for m in self.modules() if isinstance(m, Mixture))
        weights = sum(p.numel() for p in self.parameters()) - tables - idle
        return 6.0 * weights + 12.0 * len(self.blocks) * self._width * sequence


_TABLES = ("bytes.weight", "places.weight")


def next_byte_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 whatever the logits are."""
    return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
