"""The model: a small GPT over bytes, pre-norm, with causal attention and a tied head."""

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch import Tensor, nn

VOCABULARY = 256
_INITIAL_SPREAD = 0.02


class Attention(nn.Module):
    """Causal self-attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same shape."""
        batch, sequence, width = x.shape
        q, k, v = (
            part.view(batch, sequence, self.heads, width // self.heads).transpose(1, 2)
            for part in self.query_key_value(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, sequence, width))
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer network, each on normalised input and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same shape."""
        x = x + self.attention(self.norm_1(x))
        added: Tensor = x + self.mlp(self.norm_2(x))
        return added


class GPT(nn.Module):
    """Predicts the next byte.

    Args:
        layers: number of blocks.
        width: size of the vector of one byte, a multiple of ``heads``.
        heads: attention heads per block.
        sequence: longest input, in bytes.
    """

    def __init__(self, *, layers: int, width: int, heads: int, sequence: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "mlp.2.weight")):  # what adds to the stream, GPT-2
                nn.init.normal_(parameter, std=_INITIAL_SPREAD / (2 * layers) ** 0.5)

    def logits(self, x: Tensor) -> Tensor:
        """Scores of the next byte: (batch, sequence) to (batch, sequence, 256)."""
        places = torch.arange(x.shape[1], device=x.device)
        stream = self.bytes(x) + self.places(places)
        for block in self.blocks:
            stream = block(stream)
        return F.linear(self.norm(stream), self.bytes.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss in nats per byte; ``x`` and ``y`` are (batch, sequence), y one byte ahead."""
        return F.cross_entropy(self.logits(x).flatten(0, 1), y.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=_INITIAL_SPREAD)
