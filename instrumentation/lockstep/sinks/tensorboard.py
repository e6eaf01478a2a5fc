"""Summaries to TensorBoard: scalars by step, and the verdict as text.

TARGET is the log folder, ``runs`` by default. A job's events lie in a folder of its name there.
"""

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from lockstep.sinks.summary import Summary


class TensorboardSink:
    """Writes one event file."""

    def __init__(self, folder: Path) -> None:
        self._writer = SummaryWriter(folder)

    def put(self, summary: Summary, *, last: bool) -> None:
        """Adds the numbers at their step, and with the last summary the verdict."""
        for name, value in summary.numbers.items():
            self._writer.add_scalar(f"lockstep/{name}", value, summary.step)
        if last:
            lines = [f"{name}: {text}" for name, text in summary.facts.items()]
            text = "  \n".join((*lines, *summary.evidence))
            self._writer.add_text("lockstep/verdict", text, summary.step)
        # By itself the writer flushes once in two minutes.
        self._writer.flush()


def open_sink(job_id: str, target: str) -> TensorboardSink:
    """An event file for the job."""
    return TensorboardSink(Path(target or "runs") / job_id)
