"""The profiler traces that are compared, real and synthetic, with the truth of each."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from synthetic_kineto import NEW_NAME, SyntheticTraces

_FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "kineto-hta"
_UNKNOWN = "nobody can tell"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A folder of traces.

    Attributes:
        truth: the right answer, or that it is unknown who was slow.
    """

    name: str
    folder: Path
    truth: str

    def judge(self, answer: str) -> str:
        """The answer with a mark; a tool may name an innocent rank together with the slow one."""
        if answer.startswith("no answer") or self.truth == _UNKNOWN:
            return answer
        if answer.startswith(self.truth):
            return f"{answer}: right"
        slow_rank = self.truth.removeprefix("rank ")
        if slow_rank in answer.removeprefix("ranks ").split(", "):
            return f"{answer}: the slow rank and an innocent one"
        return f"{answer}: wrong"


_SYNTHETIC = (
    ("4 ranks, healthy", SyntheticTraces(), "nobody"),
    ("4 ranks, healthy, one clock 30 ms ahead", SyntheticTraces(ahead=0), "nobody"),
    ("4 ranks, rank 2 late by 20 ms", SyntheticTraces(late=2), "rank 2"),
    ("the same, rank 0's clock 30 ms ahead", SyntheticTraces(late=2, ahead=0), "rank 2"),
    ("the same, names of NCCL since 2.19", SyntheticTraces(late=2, collective=NEW_NAME), "rank 2"),
    (
        "8 ranks, 100 steps of 101 kernels, rank 5 late by 20 ms",
        SyntheticTraces(ranks=8, steps=100, kernels=100, late=5),
        "rank 5",
    ),
)


@contextmanager
def cases(data: Path) -> Iterator[list[Case]]:
    """All recordings, each in a folder of its own.

    Args:
        data: the folder of real recordings; where it lacks the profiler traces, those among the
            tests are taken.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as top:
        yield [*_real_cases(data, Path(top)), *_synthetic_cases(Path(top))]


def _real_cases(data: Path, top: Path) -> Iterator[Case]:
    """One case per job; a file without a rank in its name is a case of its own."""
    source = data / "kineto-hta" if (data / "kineto-hta").is_dir() else _FIXTURES
    groups: dict[str, list[Path]] = {}
    for file in sorted(source.glob("*.json.gz")):
        groups.setdefault(file.name.partition("_rank-")[0], []).append(file)
    for number, (name, files) in enumerate(groups.items()):
        folder = top / f"real-{number}"
        folder.mkdir()
        for file in files:
            (folder / file.name).symlink_to(file.resolve())
        ranks = f"{len(files)} ranks of a job" if len(files) > 1 else "one rank of a job"
        yield Case(name=f"{ranks}, {name.removesuffix('.json.gz')}", folder=folder, truth=_UNKNOWN)


def _synthetic_cases(top: Path) -> Iterator[Case]:
    for number, (name, traces, truth) in enumerate(_SYNTHETIC):
        folder = top / f"synthetic-{number}"
        folder.mkdir()
        traces.write(folder)
        yield Case(name=name, folder=folder, truth=truth)
