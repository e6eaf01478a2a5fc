"""A mixture of experts: a router sends each byte to two of several networks and adds what they say.

The experts are a module of their own, so that a strategy can spread them over ranks: they get the
bytes in the order of their experts, and how many there are for each.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch import Tensor, nn

EXPERTS_PER_BYTE = 2


class Experts(nn.Module):
    """Two-layer networks of one shape, stacked: ``up`` and ``down`` are (experts, in, out)."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.down = nn.Parameter(torch.empty(experts, 4 * width, width))

    def forward(self, x: Tensor, num_by_expert: Tensor) -> Tensor:
        """(bytes, width) to the same shape; the first ``num_by_expert[0]`` bytes by expert 0."""
        return apply_experts(self.up, self.down, x, num_by_expert)


def apply_experts(up: Tensor, down: Tensor, x: Tensor, num_by_expert: Tensor) -> Tensor:
    """Each expert's network on its own bytes; a GPU is waited for, to know how many they are."""
    parts = torch.split(x, num_by_expert.tolist())
    return torch.cat([F.gelu(part @ up[e]) @ down[e] for e, part in enumerate(parts)])


class Mixture(nn.Module):
    """Routes every byte to its two best experts; none is dropped.

    Attributes:
        imbalance: of the last forward, after the Switch Transformer: experts x sum of (share of the
            choices x mean probability); 1 when all experts get the same, their number when one
            gets all.
    """

    imbalance: Tensor

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(width, experts)

    @property
    def num_idle_parameters(self) -> int:
        """Parameters that one byte does not meet."""
        parameters = sum(parameter.numel() for parameter in self.experts.parameters())
        return parameters - parameters * EXPERTS_PER_BYTE // self.router.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) to the same shape."""
        stream = x.flatten(0, 1)
        probabilities = self.router(stream).float().softmax(dim=-1)
        weights, chosen = probabilities.topk(EXPERTS_PER_BYTE)
        num_experts = probabilities.shape[1]
        num_by_expert = torch.bincount(chosen.flatten(), minlength=num_experts)
        share = num_by_expert / num_by_expert.sum()
        self.imbalance = num_experts * (share * probabilities.mean(dim=0)).sum()

        order = chosen.flatten().argsort(stable=True)
        byte = order // EXPERTS_PER_BYTE
        said = self.experts(stream[byte], num_by_expert) * weights.flatten()[order, None]
        return torch.zeros_like(stream).index_add(0, byte, said.to(stream.dtype)).view_as(x)
