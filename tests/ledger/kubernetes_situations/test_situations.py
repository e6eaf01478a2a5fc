"""The situations themselves: enough of them, and none that could be taken for another."""

from .every_situation import SITUATIONS


def test_a_third_of_at_least_a_hundred_are_outages() -> None:
    outages = sum(each.outage for each in SITUATIONS)
    assert len(SITUATIONS) >= 110
    assert 3 * outages >= len(SITUATIONS)


def test_names_are_unique_and_every_situation_expects_something() -> None:
    names = [each.name for each in SITUATIONS]
    assert len(set(names)) == len(names)
    assert [each.name for each in SITUATIONS if not (each.expected or each.absent)] == []
    assert [each.name for each in SITUATIONS if not each.why.endswith(".")] == []


def test_no_job_could_be_taken_for_that_of_another_situation() -> None:
    parts = [(job.name, each.name) for each in SITUATIONS for job in each.expected]
    parts += [(part, each.name) for each in SITUATIONS for part in each.absent]
    confused = [
        (name, other)
        for name, situation in parts
        for other, owner in parts
        if owner != situation and name in other
    ]
    assert confused == []
