"""NVRx: the sections of its detector, with a stub for CUPTI, which needs a GPU."""

from contextlib import AbstractContextManager

import torch
from no_cupti import stub_cupti
from pairs import pairs_a_round, run_pairs, write_pairs
from steps import Small


def main() -> None:
    """Measures, and writes the pairs."""
    stub_cupti()
    from nvidia_resiliency_ext.straggler import Detector  # noqa: PLC0415  # after its stub

    torch.set_num_threads(1)
    Detector.initialize(node_name="bench")
    small = Small.fresh()

    def span(name: str) -> AbstractContextManager[object]:
        section: AbstractContextManager[object] = Detector.detection_section(name)
        return section

    pairs = pairs_a_round()
    write_pairs(
        {"step": run_pairs(small.step, lambda: small.step_in(span), pairs=pairs, num_steps=300)}
    )


if __name__ == "__main__":
    main()
