"""The name under which the project is installed, and what error messages tell to install."""

import tomllib
from pathlib import Path

import pytest

from lockstep_records import distribution

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_name_is_the_one_in_the_project_file() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    assert project["name"] == distribution.DISTRIBUTION


def test_without_a_distribution_the_version_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "DISTRIBUTION", "no-such-distribution")
    assert distribution.installed_version() == "unknown"
