"""Objectives leave as valid documents of OpenSLO v1."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from lockstep_alerts.command import alerts
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

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


def test_every_shipped_objective_is_a_valid_document() -> None:
    documents = list(yaml.safe_load_all(run()))
    for document in documents:
        jsonschema.validate(document, SCHEMA)
    names = [document["metadata"]["name"] for document in documents]
    assert len(names) == len(set(names)) == len(read_spec(spec_path()).objectives)


@pytest.mark.parametrize("counted", [OF_OUTCOME, OF_LENGTH], ids=["counter", "histogram"])
def test_objectives_on_counters_and_of_classes_are_documents_of_their_own(
    tmp_path: Path, counted: tuple[str, str]
) -> None:
    spec = with_entry(tmp_path, *counted)
    text, of_classes = spec.read_text(encoding="utf-8"), "\n    job_classes: {large: 0.9}"
    spec.write_text(text.replace("bad: failed jobs", "bad: failed jobs" + of_classes))
    documents = list(yaml.safe_load_all(run("--spec", spec)))
    for document in documents:
        jsonschema.validate(document, SCHEMA)
    names = [each["metadata"]["name"] for each in documents]
    assert names == ["job-success", "job-success-large", "shards"]
    targets = [each["spec"]["objectives"][0]["target"] for each in documents]
    assert targets[1] == 0.9
