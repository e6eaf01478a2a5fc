"""Reports are right on recordings whose truth is known; unmet.yaml lists those that are not yet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .cases import Case, list_cases, read_unmet

_RECORDINGS = Path(__file__).parents[2] / "fixtures"
_MAX_RANKS = 4
_CASES, _UNMET = list_cases(), read_unmet()


def _parameters() -> Iterator[object]:
    """All cases; after the first small one of each family, marked ``release``."""
    families = set()
    for case in _CASES:
        family = case.name.partition("-")[0]
        is_sampled = family not in families and getattr(case.source, "ranks", 0) <= _MAX_RANKS
        families |= {family} if is_sampled else set()
        yield pytest.param(case, id=case.name, marks=[] if is_sampled else pytest.mark.release)


@pytest.mark.parametrize("case", list(_parameters()))
def test_a_report_says_what_is_true_of_its_recording(case: Case) -> None:
    judged = case.judged(_RECORDINGS)
    if case.name in _UNMET:
        assert judged.wrong, f"{case.name} is right now: take its line out of unmet.yaml"
    else:
        assert not judged.wrong, judged


def test_the_table_of_unmet_cases_names_cases_only() -> None:
    assert {case.name for case in _CASES} >= set(_UNMET)
