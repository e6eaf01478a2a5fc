"""Whole steps on a GPU, each sampled by CUDA events; no pairs without a GPU.

One model, bare and watched in turn, as in the steps of DDP.
"""

import torch
from pairs import alternate_bare_and_watched, page_root, pairs_a_round, write_pairs
from trained import Trained

_WIDTH, _LAYERS, _BATCH = 1024, 8, 256


def _create_trained() -> Trained:
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    return Trained(torch.nn.Sequential(*layers).cuda(), torch.randn(_BATCH, _WIDTH, device="cuda"))


def main() -> None:
    """Measures, and writes the pairs."""
    if not torch.cuda.is_available():
        write_pairs({})
        return
    trained = _create_trained()
    trained.watch(page_root(), {"LOCKSTEP_JOB_ID": "bench-cuda", "LOCKSTEP_SAMPLE_EVERY": "1"})
    trained.settle()

    def step() -> None:
        trained()
        torch.cuda.synchronize()  # of the bench: what the device does for us counts too

    pairs = pairs_a_round()
    write_pairs(
        {
            "cuda": alternate_bare_and_watched(step, lambda on: trained.hook(on=on), pairs=pairs)[
                "wall"
            ]
        }
    )


if __name__ == "__main__":
    main()
