"""Parts of a loop that a rank does not see, each with the line that shows it, for all readers."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Unseen(NamedTuple):
    """One thing that a rank misses: a sentence without its end, and the line to add."""

    sentence: str
    line: str

    def __str__(self) -> str:
        """Both, as they are shown."""
        return f"{self.sentence}; add: {self.line}"


UNSEEN = {
    "phases": Unseen(
        "nothing inside the steps is seen",
        "monitor = lockstep.attach(model, optimizer)  # what the loop trains",
    ),
    "models": Unseen(
        "no model that attach was given ever ran",
        'monitor.enter_phase("forward")  # before what computes the loss',
    ),
    "data": Unseen(
        "{unphased:.0%} of the steps is in no phase, and no wait for data is seen",
        'for batch in monitor.prepare(loader):  # or monitor.phase("data") around the fetch',
    ),
    "work": Unseen(
        "{unphased:.0%} of the steps is in no phase",
        'with monitor.phase("forward"):  # around that work, or the phase that it is',
    ),
    "waits": Unseen(
        "no wait for other ranks is seen, so it counts as work",
        'with monitor.phase("sync"):  # around what waits; attach sees that of a DDP model itself',
    ),
    "stages": Unseen(
        "ranks only send to one another as stages do, and without a mesh they count as replicas",
        'lockstep.attach(model, optimizer, mesh={"pp": stage})  # which stage the rank is',
    ),
    "loss": Unseen("no step tells its loss", "monitor.step(loss=loss)"),
    "samples": Unseen(
        "no step tells tokens or samples, so throughput is unknown",
        "monitor.step(tokens=batch.numel(), samples=len(batch))  # of this rank",
    ),
}
"""By name; bit n of the page's field ``unseen`` is the n-th of them."""


def unseen_bits(names: set[str]) -> int:
    """The page's field for these names."""
    return sum(1 << bit for bit, name in enumerate(UNSEEN) if name in names)


def unseen_in(periodic: Mapping[str, Any]) -> Iterator[Unseen]:
    """What a page's periodic slot says is missed, the most serious first."""
    bits, unphased = periodic.get("unseen") or 0, periodic.get("unphased_ratio") or 0.0
    for bit, (sentence, line) in enumerate(UNSEEN.values()):
        if bits >> bit & 1:
            yield Unseen(sentence.format(unphased=unphased), line)
