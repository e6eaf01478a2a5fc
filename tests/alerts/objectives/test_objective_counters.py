"""An objective on any counter of the catalogue: it fires, and what it cannot count is refused."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep_alerts.alert import OBJECTIVES
from lockstep_alerts.output import write_files
from lockstep_alerts.reading.entry import SpecError
from lockstep_alerts.spec import Spec, read_spec
from lockstep_catalogue.ledger import CHECKPOINTS
from lockstep_catalogue.training import CHECKPOINT_SECONDS

from ..cases.promtool import cases_file, rules_and_tests
from ..test_spec import GOOD, written

ENTRY = """\
  - slo: shards
    measure: M7
    good_ratio: 0.95
    bad: bad checkpoints
    counter: {counter}
    good: {good}
    period: 7d
    ticket: TrainShardsBad
"""
OUTCOME_COUNTER = (CHECKPOINTS.name, "{outcome: ok}")
LENGTH_COUNTER = (CHECKPOINT_SECONDS.name, '{le: "60", writing: blocking}')
AT = "alerts:\n"


def with_entry(folder: Path, counter: str, good: str, change: tuple[str, str] = ("", "")) -> Path:
    entry = ENTRY.replace("{counter}", counter).replace("{good}", good).replace(*change)
    return written(folder, GOOD.replace(AT, entry + AT))


def promtool(folder: Path, spec: Spec) -> subprocess.CompletedProcess[str]:
    alerts = [each for each in spec.objective_alerts if each.name == "TrainShardsBad"]
    write_files(folder, rules_and_tests(replace(spec, objective_alerts=tuple(alerts))))
    command = ["promtool", "test", "rules", str(folder / cases_file(OBJECTIVES))]
    return subprocess.run(command, capture_output=True, check=False, text=True)


@pytest.mark.promtool
@pytest.mark.parametrize("counted", [OUTCOME_COUNTER, LENGTH_COUNTER], ids=["counter", "histogram"])
def test_bad_increments_fire_and_good_ones_do_not(tmp_path: Path, counted: tuple[str, str]) -> None:
    spec = read_spec(with_entry(tmp_path, *counted))
    done = promtool(tmp_path, spec)
    assert done.returncode == 0, done.stdout + done.stderr
    tests = (tmp_path / cases_file(OBJECTIVES)).read_text()
    assert "fires: some are bad" in tests
    assert "is silent: all are good" in tests


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            ("checkpoints_total", "checkpoint_total"),
            f"no such counter; did you mean {CHECKPOINTS.name}",
        ),
        (("outcome: ok", "outcom: ok"), r"has no such label; did you mean outcome\?"),
        (("outcome: ok", "outcome: fine"), "outcome='fine' is none of ok, failed, invalid"),
        (
            ("period: 7d", "period: 28d"),
            r"period '28d': Prometheus keeps samples for 15d; write 7d",
        ),
        (("slo: shards", "slo: goodput"), "is counted by the ledger or in slices"),
        (("period: 7d", "period: 1d"), r"period '1d': must be one of 28d, 7d"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], sentence: str
) -> None:
    path = with_entry(tmp_path, *OUTCOME_COUNTER, change)
    with pytest.raises(SpecError, match=sentence) as refused:
        read_spec(path)
    line = int(str(refused.value).split(":")[1])
    assert change[1].split(":")[0].strip() in path.read_text().splitlines()[line - 1] or (
        "counter" in path.read_text().splitlines()[line - 1]
    )


def test_a_bound_that_is_no_edge_is_refused_with_the_edges(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"le '50': is not an edge of a bucket; edges are 0.1, 0.5"):
        read_spec(with_entry(tmp_path, LENGTH_COUNTER[0], '{le: "50"}'))
