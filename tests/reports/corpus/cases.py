"""The corpus: recordings with their truth, of cases.yaml; what is not met yet is in unmet.yaml."""

import itertools
import json
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Any

import yaml

from .judging import Judged, Truth, judge_file
from .made_pages import write_pages
from .made_run import MadeRun, made_run

_HERE = Path(__file__).parent
UNMET = _HERE / "unmet.yaml"
_ARCHIVE = ".tgz"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recording and its truth.

    Attributes:
        run: how it is made; None where it is a file.
        file: in the folder of real recordings; behind an archive the path inside.
        window: first and last step to report on.
    """

    name: str
    truth: Truth
    run: MadeRun | None = None
    file: str = ""
    window: tuple[int, int] | None = None

    def exists(self, recordings: Path) -> bool:
        """Whether its file is there."""
        path = recordings / self.file
        return any(part.exists() for part in (path, path.parent) if part != recordings)

    def judged(self, recordings: Path | None = None) -> Judged:
        """Makes or finds the recording, and judges its report.

        Args:
            recordings: folder of ``file``.
        """
        # Pages are on a tmpfs.
        with tempfile.TemporaryDirectory(prefix="lockstep-corpus-", dir="/dev/shm") as folder:
            if self.run is not None:
                path = write_pages(self.run, Path(folder))
            else:
                assert recordings is not None
                path = _extracted(recordings / self.file, Path(folder))
            return judge_file(path, self.truth, self.window)


def _extracted(path: Path, folder: Path) -> Path:
    """The path itself; behind an archive that of the member in the folder."""
    for archive in path.parents:
        if archive.suffix == _ARCHIVE:
            with tarfile.open(archive) as members:
                members.extractall(folder, filter="data")
            return folder / path.relative_to(archive)
    return path


def list_cases(file: Path = _HERE / "cases.yaml") -> list[Case]:
    """All cases of a file, by name."""
    return list(itertools.chain.from_iterable(map(_expand, yaml.safe_load(file.read_text()))))


def _expand(entry: dict[str, Any]) -> Iterator[Case]:
    """A case of each combination of the values under ``over``."""
    axes: Mapping[str, list[Any]] = entry.pop("over", {})
    name = entry.pop("name")
    for values in itertools.product(*axes.values()):
        fields = _substitute(entry, dict(zip(axes, values, strict=True)))
        parts = [str(value).partition("__")[0] for value in values]
        yield _case("-".join([name, *parts]), fields)


def _substitute(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {name: _substitute(item, values) for name, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, values) for item in value]
    if isinstance(value, str) and value.removeprefix("$") in values:
        return values[value.removeprefix("$")] if value.startswith("$") else value
    return Template(value).safe_substitute(values) if isinstance(value, str) else value


def _case(name: str, fields: dict[str, Any]) -> Case:
    run = made_run(fields["run"]) if "run" in fields else None
    return Case(
        name=name,
        truth=make_truth(fields.get("truth", {}), run),
        run=run,
        file=fields.get("file", ""),
        window=tuple(fields["window"]) if "window" in fields else None,
    )


def make_truth(fields: Mapping[str, Any], run: MadeRun | None = None) -> Truth:
    """The truth of fields in YAML; what a made run loses follows from it."""
    values: dict[str, Any] = {
        name: None if value == "all" else tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    truth = Truth(**values)
    if run is None or ("lost" in fields and fields["lost"] is None):
        return truth
    shares = run.lost_shares()
    total, noise = shares.pop("total"), shares.pop("noise")
    return replace(truth, lost=shares, total=total, noise=noise)


def read_unmet() -> dict[str, str]:
    """What is wrong of cases that are not met yet, by name."""
    return dict(yaml.safe_load(UNMET.read_text()) or {})


def write_unmet(unmet: Mapping[str, str]) -> None:
    """Writes what ``read_unmet`` reads, a line a case."""
    remark = (
        "# Cases of the corpus that no report meets yet, with what is wrong; it only shrinks.\n"
    )
    lines = (f"{name}: {json.dumps(why)}\n" for name, why in sorted(unmet.items()))
    UNMET.write_text(remark + "".join(lines))
