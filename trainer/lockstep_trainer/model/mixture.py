"""A mixture of experts: a router sends each byte to two of several networks and adds their outputs.

The experts are a separate module, so that a strategy can distribute them over ranks. Their input is
the bytes in the order of their experts, and the number of bytes for each expert.
"""

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every reader of torch code knows
from torch import Tensor, nn

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
