"""TraceML's side, run under its own launcher, which starts the aggregator that it talks to."""

import os

import torch
import traceml_ai as traceml
from pairs import in_pairs, tell
from steps import Small

_EMPTIES_SECONDS = 2.1  # its queue is emptied every 2 s; a full one would be dearer still


def main() -> None:
    """Measures, and tells the pairs."""
    torch.set_num_threads(1)
    traceml.init()  # its own way in: without it phases inside a step go unseen
    small = Small.fresh()

    def watched() -> None:
        with traceml.trace_step(small.model):
            small.step()

    pairs = int(os.environ["BENCH_ROUND_PAIRS"])
    rows = in_pairs(small.step, watched, pairs=pairs, num_steps=300, pause_seconds=_EMPTIES_SECONDS)
    tell({"step": rows})


if __name__ == "__main__":
    main()
