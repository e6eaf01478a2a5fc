"""An LSTM over words: no loader, no optimizer object, gradients averaged parameter by parameter."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep

EPOCHS, STEPS_PER_EPOCH, VALIDATION_STEPS = 3, 120, 6
VOCABULARY, WIDTH, BPTT, BATCH, CLIP, RATE = 400, 128, 24, 16, 0.25, 1.0
State = tuple[Tensor, Tensor]


class RNNModel(nn.Module):
    """Embedding, LSTM, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, 2)
        self.decoder = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: Tensor, hidden: State) -> tuple[Tensor, State]:
        """Log-probabilities [length x batch, vocabulary] and the new state."""
        out, hidden = self.rnn(self.encoder(words), hidden)
        return nn.functional.log_softmax(self.decoder(out).flatten(0, 1), dim=1), hidden

    def init_hidden(self) -> State:
        """A state of zeros."""
        return torch.zeros(2, BATCH, WIDTH), torch.zeros(2, BATCH, WIDTH)


def batchify(num_steps: int) -> Tensor:
    """Words in columns [length, batch]."""
    return torch.randint(VOCABULARY, (num_steps * BPTT + 1, BATCH))


def get_batch(source: Tensor, begin: int) -> tuple[Tensor, Tensor]:
    """A window and its targets."""
    return source[begin : begin + BPTT], source[begin + 1 : begin + 1 + BPTT].flatten()


def repackage_hidden(hidden: State) -> State:
    """The same values without their history."""
    return hidden[0].detach(), hidden[1].detach()


def average_gradients(model: nn.Module) -> None:
    """The mean of each gradient over all ranks."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@torch.no_grad()
def evaluate(model: RNNModel, source: Tensor) -> float:
    """Mean loss over held-out words."""
    model.eval()
    hidden, total, begins = model.init_hidden(), 0.0, range(0, len(source) - 1, BPTT)
    for begin in begins:
        words, targets = get_batch(source, begin)
        output, hidden = model(words, hidden)
        total += float(nn.functional.nll_loss(output, targets))
    model.train()
    return total / len(begins)


def train_epoch(model: RNNModel, source: Tensor, monitor: lockstep.Monitor) -> None:
    """One epoch, with truncated backpropagation through time."""
    hidden = model.init_hidden()
    for begin in range(0, len(source) - 1, BPTT):
        with monitor.phase("data"):
            words, targets = get_batch(source, begin)
        model.zero_grad()
        output, hidden = model(words, repackage_hidden(hidden))
        loss = nn.functional.nll_loss(output, targets)
        loss.backward()
        average_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-RATE)
        monitor.step(loss=loss.item(), tokens=words.numel())


def main() -> None:
    """Trains on random words, other ones on each rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = RNNModel()
    torch.manual_seed(dist.get_rank())
    train, held_out = batchify(STEPS_PER_EPOCH), batchify(VALIDATION_STEPS)
    monitor = lockstep.attach(model)
    for epoch in range(EPOCHS):
        train_epoch(model, train, monitor)
        with monitor.phase("eval"):
            loss = evaluate(model, held_out)
        if dist.get_rank() == 0:
            print(f"end of epoch {epoch}, loss {loss:.2f}")
    monitor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
