"""The Trainer of Hugging Face transformers, with evaluation and checkpoints.

lockstep run --nproc-per-node 2 docs/examples/transformers_trainer.py
torchrun --nproc-per-node 2 docs/examples/transformers_trainer.py
accelerate launch --num_processes 2 docs/examples/transformers_trainer.py
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from lockstep.integrations.transformers import LockstepCallback

VOCABULARY, LENGTH = 64, 16


class RandomTokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of random tokens, the same on all ranks."""

    def __init__(self, size: int) -> None:
        self._tokens = torch.randint(VOCABULARY, (size, LENGTH))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


def main() -> None:
    """Trains a GPT-2 of one layer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--out", type=Path, default=Path("checkpoints"), help="for checkpoints")
    options = parser.parse_args()

    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=1, n_head=2)
    arguments = TrainingArguments(
        output_dir=str(options.out),
        max_steps=options.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=20,
        save_steps=20,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    trainer = Trainer(
        GPT2LMHeadModel(shape),
        arguments,
        train_dataset=RandomTokens(4096),
        eval_dataset=RandomTokens(16),
    )
    trainer.add_callback(LockstepCallback(trainer))
    trainer.train()


if __name__ == "__main__":
    main()
