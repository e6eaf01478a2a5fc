"""Runs docs/examples/torchtitan_metrics.py on CPUs, with what torchtitan needs a GPU for replaced.

torchrun --nproc-per-node 2 bench/examples/torchtitan_on_cpu.py --steps 40 --out FOLDER

torchtitan 0.3.0 and torch 2.13.0: the device module answers for a CPU, causal attention stands in
for FlexAttention (it has no backward there), a sum and a division for gloo's missing PREMUL_SUM,
and ``set_timeout`` of a newer torch does nothing. Trainer, FSDP2, optimizer, loader and the metrics
hook are torchtitan's own, its debug model, tokenizer and texts small.
"""

import argparse
import importlib
import json
import os
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "torchtitan_metrics.py"
WORDS = ["alpha", "beta", "gamma", "node", "rank", "step", "loss", "gradient", "late", "slow"]
OPTIONS = {
    "--module": "llama3",
    "--config": "llama3_debugmodel",
    "--training.seq_len": "128",
    "--training.local_batch_size": "2",
    "--parallelism.spmd_backend": "partial_dtensor",
    "--validator.freq": "1000000",
}


def answer_for_a_cpu() -> None:
    """Puts a device module of the CPU where torchtitan asks torch for that of a GPU."""
    answers: dict[str, Any] = {
        "set_device": lambda _: None,
        "current_device": lambda: 0,
        "device_count": lambda: 64,
        "get_device_name": lambda _=None: "cpu",
        "get_device_properties": lambda _=None: SimpleNamespace(name="cpu", total_memory=1 << 33),
        "reset_peak_memory_stats": lambda *_: None,
        "memory_stats": lambda _=None: {},
        "empty_cache": lambda: None,
    }
    module = ModuleType("cpu_as_device")
    module.__dict__.update(vars(torch.cpu) | answers)
    # torchtitan asks these two functions of torch, which has no public way to answer.
    torch_utils = importlib.import_module("torch._utils")
    torch_utils.__dict__["_get_available_device_type"] = lambda: "cpu"
    torch_utils.__dict__["_get_device_module"] = lambda _: module


def replace_what_cpus_lack() -> None:
    """Attention with a backward, a reduction that gloo has, a time-out of a newer torch."""
    attention = importlib.import_module("torchtitan.models.common.attention")  # asks for a device

    def attend(q: Any, k: Any, v: Any, **_: Any) -> tuple[Any, Any]:
        sdpa = torch.nn.functional.scaled_dot_product_attention
        return sdpa(q, k, v, is_causal=True, enable_gqa=True), SimpleNamespace(lse=None)

    attention.FlexAttention._compiled_flex_attn = staticmethod(attend)  # noqa: SLF001  # its kernel
    divide = FSDPModule.set_gradient_divide_factor

    def divide_by(module: FSDPModule, factor: float) -> None:
        module.set_force_sum_reduction_for_comms(True)
        divide(module, factor)

    replaced: list[tuple[Any, str, Any]] = [
        (FSDPModule, "set_gradient_divide_factor", divide_by),
        (dist, "set_timeout", lambda *_: None),
    ]
    for owner, name, function in replaced:
        setattr(owner, name, function)


def write_texts() -> None:
    """A tokenizer and texts of a few words, where the debug configuration looks for them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: PLC0415  # torchtitan's

    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=400)) for _ in range(400)]
    for name in ("tokenizer", "c4_test"):
        Path("tests/assets", name).mkdir(parents=True)
    begin, end, unknown = "<|begin_of_text|>", "<|end_of_text|>", "<unk>"
    tokenizer = Tokenizer(models.BPE(unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[unknown, begin, end])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save("tests/assets/tokenizer/tokenizer.json")
    names = {"bos_token": begin, "eos_token": end, "unk_token": unknown}
    Path("tests/assets/tokenizer/tokenizer_config.json").write_text(json.dumps(names))
    lines = [json.dumps({"text": text}) for text in texts]
    Path("tests/assets/c4_test/data.json").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Trains; each rank has the texts in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--out", type=Path, required=True, help="a folder for its files")
    options = parser.parse_args()
    folder = options.out / f"rank{os.environ['RANK']}"
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_texts()
    answer_for_a_cpu()
    replace_what_cpus_lack()
    words = [word for option in OPTIONS.items() for word in option]
    sys.argv = [str(EXAMPLE), *words, "--training.steps", str(options.steps)]
    exec(compile(EXAMPLE.read_bytes(), EXAMPLE, "exec"), {"__name__": "__main__"})  # noqa: S102  # ours


if __name__ == "__main__":
    main()
