"""Ranks that hold the same: which count for a job's data, and replicas that no longer agree.

Ranks that differ only in tp or pp see the same samples, so those at coordinate 0 of both count;
ranks along cp hold parts of the same sequences, and each counts its own. Ranks that differ only in
dp hold the same parameters and, after the gradients are averaged, the same gradients: one whose
memory or arithmetic is faulty diverges.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lockstep_records.page.layout import FINGERPRINTS
from lockstep_records.page.reader import Page
from lockstep_records.text.documents import read_toml


class Unseen(NamedTuple):
    """One thing that a rank misses: a sentence without its end, and the line to add."""

    sentence: str
    line: str

    def __str__(self) -> str:
        """Both, as they are shown."""
        return f"{self.sentence}; add: {self.line}"


UNSEEN = {
    name: Unseen(**row) for name, row in read_toml(Path(__file__).with_suffix(".toml")).items()
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


_SAME_DATA_AXES = ("pp", "tp")


def counts_data(mesh: Mapping[str, int]) -> bool:
    """Whether a rank with these coordinates, by axis, counts for the job's samples and tokens."""
    return all(mesh.get(axis, 0) == 0 for axis in _SAME_DATA_AXES)


Fingerprint = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Replicas of one part of the model at the newest step that at least two of them have.

    Attributes:
        part: coordinates on the axes other than dp.
        odd: ranks whose fingerprint is not that of the majority; all without a majority.
    """

    part: tuple[tuple[str, int], ...]
    step: int
    ranks: tuple[int, ...]
    odd: tuple[int, ...]


def fingerprints_of(page: Page) -> Mapping[int, Fingerprint]:
    """Fingerprint of (parameters, gradients) by step; at most the newest few.

    None of ranks that share parameters only now and then: they differ in between.
    """
    periodic = page.periodic
    if periodic["sync_rounds"]:
        return {}
    count = min(periodic["fingerprints"], FINGERPRINTS)
    pairs = zip(periodic["fingerprint_parameters"], periodic["fingerprint_gradients"], strict=True)
    return dict(list(zip(periodic["fingerprint_step"], pairs, strict=True))[:count])


def compare_replicas(pages: Iterable[Page]) -> list[Comparison]:
    """Comparisons of all parts of the model that have replicas among the pages of one attempt."""
    by_part: dict[tuple[tuple[str, int], ...], dict[int, Mapping[int, Fingerprint]]]
    by_part = defaultdict(dict)
    for page in pages:
        identity = page.identity
        part = tuple((axis, at) for axis, at in sorted(identity["mesh"].items()) if axis != "dp")
        by_part[part][identity["rank"]] = fingerprints_of(page)
    comparisons = [_compare(part, by_rank) for part, by_rank in sorted(by_part.items())]
    return [comparison for comparison in comparisons if comparison is not None]


def _compare(
    part: tuple[tuple[str, int], ...], by_rank: Mapping[int, Mapping[int, Fingerprint]]
) -> Comparison | None:
    ranks_at = Counter(step for by_step in by_rank.values() for step in by_step)
    steps = [step for step, num_ranks in ranks_at.items() if num_ranks > 1]
    if not steps:
        return None
    step = max(steps)
    values = {rank: by_step[step] for rank, by_step in by_rank.items() if step in by_step}
    (most, votes), *_ = Counter(values.values()).most_common(1)
    # Two replicas that differ show that one of them is wrong, and not which.
    has_majority = 2 * votes > len(values)
    odd = [rank for rank, value in values.items() if not has_majority or value != most]
    return Comparison(part=part, step=step, ranks=tuple(sorted(values)), odd=tuple(sorted(odd)))
