"""The Trainer of transformers with a small GPT-2, evaluations and the callback."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from lockstep.integrations.transformers import LockstepCallback

STEPS, EVAL_EVERY, BATCH, VOCABULARY, LENGTH = 1100, 250, 4, 64, 32
Sample = dict[str, torch.Tensor]


class RandomTokens(Dataset[Sample]):
    """Sequences of random tokens."""

    def __init__(self, size: int) -> None:
        self.tokens = torch.randint(VOCABULARY, (size, LENGTH))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Sample:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class HeldOutTokens(RandomTokens):
    """The same for evaluations."""

    def __getitem__(self, index: int) -> Sample:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Trains on random tokens."""
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir="checkpoints",
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        eval_strategy="steps",
        eval_steps=EVAL_EVERY,
        save_strategy="no",
        logging_steps=50,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(
        GPT2LMHeadModel(shape),
        arguments,
        train_dataset=RandomTokens(8192),
        eval_dataset=HeldOutTokens(32),
    )
    trainer.add_callback(LockstepCallback(trainer))
    trainer.train()


if __name__ == "__main__":
    main()
