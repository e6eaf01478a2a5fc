"""TraceML, under its own launcher, which starts the aggregator that it talks to."""

import torch
import traceml_ai as traceml
from pairs import pairs_a_round, run_pairs, write_pairs
from steps import Small

_QUEUE_SECONDS = 2.1  # its queue is emptied every 2 s; a full one would cost more still


def main() -> None:
    """Measures, and writes the pairs."""
    torch.set_num_threads(1)
    traceml.init()  # without it TraceML sees no phases inside a step
    small = Small.fresh()

    def watched() -> None:
        with traceml.trace_step(small.model):
            small.step()

    pairs = pairs_a_round()
    rows = run_pairs(small.step, watched, pairs=pairs, num_steps=300, pause_seconds=_QUEUE_SECONDS)
    write_pairs({"step": rows})


if __name__ == "__main__":
    main()
