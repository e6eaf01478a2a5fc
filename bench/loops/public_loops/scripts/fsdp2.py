"""A transformer sharded by FSDP2, layer by layer, with clipping and a checkpoint by DCP."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

import lockstep

STEPS, SAVE_AT = 280, 120
VOCABULARY, LENGTH, WIDTH, LAYERS, BATCH = 128, 64, 64, 3, 8


class Transformer(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, length] to [batch, length, vocabulary]."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask.to(hidden.dtype))
        out: Tensor = self.head(hidden)
        return out


def make_batch() -> Tensor:
    """Random tokens [batch, length + 1]."""
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1))


def main() -> None:
    """Trains on random tokens."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Transformer()
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())
    monitor = lockstep.attach(model, optimizer, mesh={"fsdp": dist.get_rank()})
    for step in range(1, STEPS + 1):
        with monitor.phase("data"):
            batch = make_batch()
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        monitor.step(loss=loss.detach(), tokens=batch.numel())
        if step == SAVE_AT:
            save({"model": get_model_state_dict(model)}, checkpoint_id=f"checkpoint-{step}")
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
