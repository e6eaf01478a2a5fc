"""The situations themselves: enough, named, and one for each sentence of the issue."""

import re

import pytest

from .every import EVERY_SITUATION
from .scenario import ExpectedAbsence, ExpectedJob, Situation, Slurm
from .sentences import SENTENCES

IDENTIFIERS = [situation.name for situation in EVERY_SITUATION]


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len(IDENTIFIERS) >= 75
    assert len(set(IDENTIFIERS)) == len(IDENTIFIERS)


@pytest.mark.parametrize("sentence", SENTENCES)
def test_each_sentence_of_the_issue_has_a_situation(sentence: str) -> None:
    assert [each.name for each in EVERY_SITUATION if sentence in each.sentences]


@pytest.mark.parametrize("situation", EVERY_SITUATION, ids=IDENTIFIERS)
def test_each_expects_something_of_jobs_it_has(situation: Situation) -> None:
    assert situation.expected
    assert set(situation.sentences) <= SENTENCES.keys()
    assert all(callable(getattr(Slurm, action.verb)) for action in situation.script)
    submitted = {
        str(each.arguments[0]) for each in situation.script if each.verb in {"submit", "srun"}
    }
    rows = set()
    for action in situation.script:
        if action.verb == "account" and isinstance(action.arguments[0], tuple):
            rows |= {str(row.job_id) for row in action.arguments[0]}
    for expected in situation.expected:
        if isinstance(expected, ExpectedJob):
            named = re.match(r"\{(\w+)\}(?:_\d+|\+\d)?$", expected.job_id)
            bulk = any(each.verb == "accounting_sql" for each in situation.script)
            assert named[1] in submitted if named else expected.job_id in rows or bulk
        if isinstance(expected, ExpectedAbsence):
            assert expected.job_id.isdecimal() or expected.job_id.strip("{}_123") in submitted
