"""The model: a small GPT over bytes, pre-norm, causal, its blocks dense or mixtures of experts."""

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

EXPERTS_PER_BYTE = 2


class Experts(nn.Module):
    """Two-layer networks of one shape, stacked: ``up`` and ``down`` are [experts, in, out]."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.down = nn.Parameter(torch.empty(experts, 4 * width, width))

    def forward(self, x: Tensor, num_by_expert: Tensor) -> Tensor:
        """[bytes, width] to the same shape; expert 0 gets the first ``num_by_expert[0]`` bytes."""
        return apply_experts(self.up, self.down, x, num_by_expert)


def apply_experts(up: Tensor, down: Tensor, x: Tensor, num_by_expert: Tensor) -> Tensor:
    """Applies each expert's network to its own bytes."""
    # Sync point: split needs the sizes on the host, so tolist waits for the GPU.
    parts = torch.split(x, num_by_expert.tolist())
    return torch.cat([F.gelu(part @ up[e]) @ down[e] for e, part in enumerate(parts)])


class Mixture(nn.Module):
    """Routes every byte to its two best experts; none is dropped.

    Attributes:
        imbalance: of the last forward: num_experts x sum over experts of (ratio of the choices x
            mean probability), the auxiliary loss of the Switch Transformer. 1 when all experts get
            the same, num_experts when one gets all.
    """

    imbalance: Tensor

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(width, experts)

    @property
    def num_idle_parameters(self) -> int:
        """Parameters that are not applied to a given byte."""
        parameters = sum(parameter.numel() for parameter in self.experts.parameters())
        return parameters - parameters * EXPERTS_PER_BYTE // self.router.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same shape."""
        stream = x.flatten(0, 1)
        probabilities = self.router(stream).float().softmax(dim=-1)
        weights, chosen = probabilities.topk(EXPERTS_PER_BYTE)
        num_experts = probabilities.shape[1]
        num_by_expert = torch.bincount(chosen.flatten(), minlength=num_experts)
        ratio = num_by_expert / num_by_expert.sum()
        self.imbalance = num_experts * (ratio * probabilities.mean(dim=0)).sum()

        # Stable: bytes of one expert keep their order, so that sums have one order in every run.
        order = chosen.flatten().argsort(stable=True)
        byte = order // EXPERTS_PER_BYTE
        outputs = self.experts(stream[byte], num_by_expert) * weights.flatten()[order, None]
        return torch.zeros_like(stream).index_add(0, byte, outputs.to(stream.dtype)).view_as(x)


VOCABULARY = 256
_INITIAL_STD = 0.02
_BALANCE_WEIGHT = 0.01  # of the auxiliary loss, as in the Switch Transformer


class Attention(nn.Module):
    """Causal self-attention; a head's projections are contiguous, so that tp can split heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same shape, by the heads that this rank holds."""
        batch, sequence, _ = x.shape
        # -1: under tensor parallelism a rank has only its heads of the projection.
        projected = self.query_key_value(x).view(batch, sequence, -1, 3, self.head_width)
        q, k, v = projected.transpose(1, 2).unbind(dim=3)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, sequence, -1))
        return mixed


class Block(nn.Module):
    """Attention, then a two-layer network or ``experts``, each with a norm before and a residual.

    ``recompute`` keeps no activations inside the block and recomputes them in the backward.
    """

    def __init__(self, width: int, heads: int, *, experts: int, recompute: bool) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = Mixture(width, experts) if experts else _two_layers(width)
        self._recompute = recompute

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same shape."""
        if self._recompute and self.training:
            recomputed: Tensor = checkpoint(self._compute, x, use_reentrant=False)
            return recomputed
        return self._compute(x)

    def _compute(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        added: Tensor = x + self.mlp(self.norm_2(x))
        return added


def _two_layers(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
    )


class GPT(nn.Module):
    """Predicts the next byte.

    A pipeline stage is a GPT without the modules of other stages; its parameters have the names of
    the whole model. The ``width`` is a multiple of ``heads``; ``experts`` are per block, 0 for a
    dense model; ``recompute`` saves memory by recomputing each block in the backward.
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
                # GPT-2: two projections per block add to the residual stream, so their weights are
                # smaller by the root of their number, and its variance stays that of one layer.
                is_residual = name.endswith(("out.weight", "mlp.2.weight", "experts.down"))
                scale = (2 * layers) ** -0.5 if is_residual else 1.0
                nn.init.normal_(parameter, std=_INITIAL_STD * scale)

    def logits(self, x: Tensor) -> Tensor:
        """Scores of the next byte: [batch, sequence] to [batch, sequence, 256].

        A pipeline stage other than the first takes the residual stream [batch, sequence, width] of
        the stage before it; a stage other than the last returns its own.
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
        """Mean loss in nats per byte; ``x`` and ``y`` are [batch, sequence], y one byte ahead.

        In training it includes the auxiliary loss of unbalanced experts. Without ``y`` it returns
        the logits.
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

        6 N + 12 x layers x width x sequence, as in the PaLM paper. N is the number of weights that
        a byte is multiplied with: no embeddings, and of the experts the chosen two. The second
        term is attention, not halved for the causal mask.
        """
        tables = sum(p.numel() for name, p in self.named_parameters() if name in _TABLES)
        idle = sum(m.num_idle_parameters for m in self.modules() if isinstance(m, Mixture))
        weights = sum(p.numel() for p in self.parameters()) - tables - idle
        return 6.0 * weights + 12.0 * len(self.blocks) * self._width * sequence


_TABLES = ("bytes.weight", "places.weight")


def next_byte_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 whatever the dtype of the logits."""
    return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
