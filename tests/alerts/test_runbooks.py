"""Runbooks: their queries are PromQL over series that exist, their commands are ours."""

import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
import yaml

from lockstep_alerts.shipped import runbooks_path, spec_path
from lockstep_alerts.spec import read_spec
from lockstep_prometheus.promql import selectors

PAGES = sorted(runbooks_path().glob("*.md"))
QUERY = re.compile(r"^```promql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]*\b(?:lockstep_[a-z]+_|slo:)[^`\n]*)`")
COMMAND = re.compile(r"(?:^ {4,}|`)lockstep ([a-z]+)((?: [a-z-]+)*)", re.MULTILINE)
OTHER_PAGE = re.compile(r"\]\([A-Z][A-Za-z]+\.md\)")
DIAGNOSIS = re.compile(r"^## (?:Diagnosis|Three commands)\n(.*?)^## ", re.MULTILINE | re.DOTALL)
COMMANDS = {entry.name: entry for entry in entry_points(group="lockstep.commands")}


def queries(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return QUERY.findall(text) + INLINE.findall(text)


def unknown_series(query: str) -> set[str]:
    return {each.name for each in selectors(query) if each.series is None}


def unknown_commands(text: str) -> list[str]:
    """Commands that do not exist; of a group, subcommands too."""
    unknown = []
    for name, rest in COMMAND.findall(text):
        command = COMMANDS[name].load() if name in COMMANDS else None
        words = rest.split()
        if isinstance(command, click.Group) and words:
            command = command.get_command(click.Context(command), words[0])
        if command is None:
            unknown.append(f"{name}{rest}")
    return unknown


@pytest.mark.promtool
def test_promtool_takes_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"r:{page.stem.lower()}_{number}:query", "expr": query}
        for page in PAGES
        for number, query in enumerate(queries(page))
    ]
    assert len(rules) > len(PAGES)
    path = tmp_path / "queries.rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def find_faults(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    [diagnosis] = DIAGNOSIS.findall(text)
    if not any(pattern.search(diagnosis) for pattern in (QUERY, INLINE, COMMAND, OTHER_PAGE)):
        yield f"{page.name}: its diagnosis has no query and no command"
    yield from (f"{page.name}: no command {name}" for name in unknown_commands(text))
    for query in queries(page):
        yield from (f"{page.name}: no series {name}" for name in unknown_series(query))


def test_a_diagnosis_has_queries_or_commands_and_all_of_them_exist() -> None:
    assert [fault for page in PAGES for fault in find_faults(page)] == []


def test_a_page_begins_with_what_is_lost_and_three_commands_that_tell_why() -> None:
    for alert in filter(lambda each: each.is_page, read_spec(spec_path()).alerts):
        text = (runbooks_path() / f"{alert.name}.md").read_text(encoding="utf-8")
        titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert titles[:3] == ["What is lost", "Three commands", "Meaning"], alert.name
        block = text.partition("## Three commands\n\n")[2].partition("\n\n")[0]
        assert len([line for line in block.splitlines() if line.startswith("    ")]) == 3, (
            alert.name
        )


def test_a_page_says_how_long_and_whether_it_can_wait() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "## Time box\n" in text, page.name
        if re.search(r"\bdrain", text, re.IGNORECASE):
            assert "kubectl drain" in text, page.name
            assert "scontrol update" in text, page.name
