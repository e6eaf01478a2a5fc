"""Objectives leave as OpenSLO v1 and come back the same; what an entry cannot say is refused."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from lockstep_alerts.command import alerts
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec
from lockstep_catalogue.ledger import CHECKPOINTS, JOBS

from .test_objective_counters import OF_LENGTH, OF_OUTCOME, with_entry

Schema = dict[str, Any]


def mapping(required: str, closed: bool = True, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "required": required.split(),
        "additionalProperties": not closed,
        "properties": properties,
    }


# By the text of the specification: the published JSON schema of v1 takes no document with a ratio,
# for it spells that field otherwise.
NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
TEXT = {"type": "string", "maxLength": 1050}
QUERY = mapping(
    "metricSource",
    metricSource=mapping("type spec", type=TEXT, spec=mapping("query", query=TEXT)),
)
RATIO = mapping("counter total", counter={"type": "boolean"}, good=QUERY, bad=QUERY, total=QUERY)
RATIO["oneOf"] = [{"required": ["good"]}, {"required": ["bad"]}]
NOTES = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "propertyNames": {"pattern": "^[a-zA-Z0-9]([a-zA-Z0-9._-]{0,61}[a-zA-Z0-9])?$"},
}
WINDOW = mapping(
    "duration isRolling",
    duration={"type": "string", "pattern": "^[1-9][0-9]*[mhdwMQY]$"},
    isRolling={"type": "boolean"},
)
TARGET = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
INDICATOR = mapping(
    "metadata spec",
    metadata=mapping("name", name=NAME),
    spec=mapping("ratioMetric", ratioMetric=RATIO),
)
SPEC = mapping(
    "service indicator budgetingMethod objectives",
    description=TEXT,
    service=NAME,
    indicator=INDICATOR,
    timeWindow={"type": "array", "minItems": 1, "maxItems": 1, "items": WINDOW},
    budgetingMethod={"enum": ["Occurrences", "Timeslices"]},
    objectives={
        "type": "array",
        "minItems": 1,
        "items": mapping("target", displayName=TEXT, target=TARGET),
    },
)
SCHEMA = mapping(
    "apiVersion kind metadata spec",
    apiVersion={"const": "openslo/v1"},
    kind={"const": "SLO"},
    metadata=mapping("name", name=NAME, displayName=TEXT, annotations=NOTES),
    spec=SPEC,
)


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(alerts, ["openslo", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def exported(folder: Path, spec: Path) -> Path:
    path = folder / "openslo.yaml"
    path.write_text(run("export", "--spec", spec), encoding="utf-8")
    return path


def imported_into(folder: Path, spec: Path, documents: Path) -> Path:
    """The spec with the entries of an import instead of its own."""
    document = yaml.safe_load(spec.read_text(encoding="utf-8"))
    document["objectives"] = yaml.safe_load(run("import", documents))["objectives"]
    path = folder / "again.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def test_every_shipped_objective_is_a_valid_document() -> None:
    documents = list(yaml.safe_load_all(run("export")))
    for document in documents:
        jsonschema.validate(document, SCHEMA)
    names = [document["metadata"]["name"] for document in documents]
    assert len(names) == len(set(names)) == len(read_spec(spec_path()).objectives)


def test_the_shipped_objectives_come_back_as_they_were(tmp_path: Path) -> None:
    again = imported_into(tmp_path, spec_path(), exported(tmp_path, spec_path()))
    assert read_spec(again).objectives == read_spec(spec_path()).objectives


@pytest.mark.parametrize("counted", [OF_OUTCOME, OF_LENGTH], ids=["counter", "histogram"])
def test_objectives_on_counters_and_of_classes_come_back_as_they_were(
    tmp_path: Path, counted: tuple[str, str]
) -> None:
    spec = with_entry(tmp_path, *counted)
    text, of_classes = spec.read_text(encoding="utf-8"), "\n    job_classes: {large: 0.9}"
    spec.write_text(text.replace("bad: failed jobs", "bad: failed jobs" + of_classes))
    documents = exported(tmp_path, spec)
    names = [each["metadata"]["name"] for each in yaml.safe_load_all(documents.read_text())]
    assert names == ["job-success", "job-success-large", "shards"]
    again = imported_into(tmp_path, spec, documents)
    assert read_spec(again).objectives == read_spec(spec).objectives


SOURCE = "metricSource: {type: Prometheus, spec: {query: '%s'}}"
OK = SOURCE % f'sum(rate({CHECKPOINTS.name}{{outcome="ok"}}[5m]))'
ALL = SOURCE % f"sum(rate({CHECKPOINTS.name}[5m]))"
FOREIGN = f"""\
apiVersion: openslo/v1
kind: SLO
metadata:
  name: durable-checkpoints
spec:
  service: training
  indicator:
    metadata: {{name: durable}}
    spec:
      ratioMetric:
        counter: true
        good:
          {OK}
        total:
          {ALL}
  timeWindow:
    - duration: 1w
      isRolling: true
  budgetingMethod: Occurrences
  objectives:
    - targetPercent: 99
"""


def test_a_document_of_somebody_else_becomes_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(FOREIGN, encoding="utf-8")
    [entry] = yaml.safe_load(run("import", path, "--measure", "M7"))["objectives"]
    assert entry == {
        "slo": "durable_checkpoints",
        "measure": "M7",
        "good_ratio": 0.99,
        "bad": "bad events of durable-checkpoints",
        "counter": CHECKPOINTS.name,
        "good": {"outcome": "ok"},
        "period": "7d",
        "ticket": "TrainSLODurableCheckpoints",
    }


@pytest.mark.parametrize(
    ("change", "line", "sentence"),
    [
        (("Method: Occurrences", "Method: Timeslices"), 19, "only Occurrences"),
        (("kind: SLO", "kind: SLI"), 2, "must be an SLO of openslo/v1"),
        (("duration: 1w", "duration: 1M"), 16, "duration '1M' must be one of 28d, 4w, 7d, 1w"),
        (("isRolling: true", "isRolling: false"), 16, "must be one rolling window"),
        (("targetPercent: 99", "displayName: x"), 20, "needs a target"),
        ((CHECKPOINTS.name + "[", "http_requests_total["), 14, "one counter of the catalogue"),
        ((CHECKPOINTS.name + "[", JOBS.name + "["), 14, "is a gauge"),
        (('{outcome="ok"}', '{outcome!="ok"}'), 12, "matchers must be"),
        (('{outcome="ok"}', ""), 12, "must be a part of total by one label more"),
        (("- targetPercent: 99", "- target: 0.9\n    - target: 0.99"), 20, "must be one;"),
    ],
)
def test_what_an_entry_cannot_say_is_refused_with_its_line(
    tmp_path: Path, change: tuple[str, str], line: int, sentence: str
) -> None:
    path = tmp_path / "slo.yaml"
    path.write_text(FOREIGN.replace(*change), encoding="utf-8")
    result = CliRunner().invoke(alerts, ["openslo", "import", str(path)])
    assert result.exit_code == 2
    assert sentence in result.output
    assert f"slo.yaml:{line}: " in result.output
