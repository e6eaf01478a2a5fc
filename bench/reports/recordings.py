"""What is reported on: profiler traces that are real or made, with what is true of each."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kineto_made import NEW, MadeTraces

_FIXTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "kineto-hta"
_UNKNOWN = "nobody can tell"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A folder of traces.

    Attributes:
        truth: what an answer says when it is right, as far as it is known who was slow.
    """

    name: str
    folder: Path
    truth: str

    def judge(self, said: str) -> str:
        """The answer with its mark; a tool may name the culprit and an innocent rank beside it."""
        if said.startswith("no answer") or self.truth == _UNKNOWN:
            return said
        if said.startswith(self.truth):
            return f"{said}: right"
        culprit = self.truth.removeprefix("rank ")
        if culprit in said.removeprefix("ranks ").split(", "):
            return f"{said}: the culprit and an innocent rank"
        return f"{said}: wrong"


_MADE = (
    ("4 ranks, healthy", MadeTraces(), "nobody"),
    ("4 ranks, healthy, one clock 30 ms ahead", MadeTraces(ahead=0), "nobody"),
    ("4 ranks, rank 2 late by 20 ms", MadeTraces(late=2), "rank 2"),
    ("the same, rank 0's clock 30 ms ahead", MadeTraces(late=2, ahead=0), "rank 2"),
    ("the same, names of NCCL since 2.19", MadeTraces(late=2, collective=NEW), "rank 2"),
    (
        "8 ranks, 100 steps of 101 kernels, rank 5 late by 20 ms",
        MadeTraces(ranks=8, steps=100, kernels=100, late=5),
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
        yield [*_real(data, Path(top)), *_made(Path(top))]


def _real(data: Path, top: Path) -> Iterator[Case]:
    """Ranks of one job together; a file that tells no rank, or lies alone, by itself."""
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


def _made(top: Path) -> Iterator[Case]:
    for number, (name, made, truth) in enumerate(_MADE):
        folder = top / f"made-{number}"
        folder.mkdir()
        made.write(folder)
        yield Case(name=name, folder=folder, truth=truth)
