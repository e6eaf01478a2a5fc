"""The series that PromQL reads, by its parser, and expressions with parts replaced."""

import pytest

from lockstep_catalogue.recorded import SLICE_VALUE
from lockstep_catalogue.training import PHASE_SECONDS
from lockstep_prometheus.promql import VectorSelector, parse, rewrite, selectors


def test_selectors_have_matchers_range_function_and_series_of_the_catalogue() -> None:
    phases, value, other = selectors(
        f'sum(rate({PHASE_SECONDS.name}{{phase=~"data|sync"}}[5m])) / {SLICE_VALUE.name} > other'
    )
    assert (phases.series, phases.range_seconds) == (PHASE_SECONDS, 300)
    assert (phases.matchers, phases.function) == ((("phase", "=~", "data|sync"),), "rate")
    assert (value.series, value.range_seconds, value.function) == (SLICE_VALUE, 0, "")
    assert (other.name, other.series) == ("other", None)


@pytest.mark.parametrize(
    ("expression", "range_seconds"),
    [("max_over_time(rate(a[5m])[1h:1m])", 3900), ("max_over_time(a[1h:])", 3600), ("-(a)", 0)],
)
def test_a_selector_reaches_as_far_back_as_the_subqueries_around_it(
    expression: str, range_seconds: float
) -> None:
    assert [each.range_seconds for each in selectors(expression)] == [range_seconds]


def test_a_name_among_the_matchers_is_the_name() -> None:
    [selector] = selectors('{__name__="up", job!~"a|b"}')
    assert (selector.name, selector.matchers[1]) == ("up", ("job", "!~", "a|b"))
    [selector] = selectors('{__name__=~"up|down"}')
    assert selector.name == ""


@pytest.mark.parametrize("text", ["rate(a)", "a[5", "sum by ("])
def test_what_is_not_promql_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is not PromQL") as refusal:
        parse(text)
    assert repr(text) in str(refusal.value)


def test_replaced_selectors_change_the_text_and_nothing_else_does() -> None:
    def renamed(node: object) -> str | None:
        is_named_a = isinstance(node, VectorSelector) and node.name == "a"
        return str(node).replace("a", "b", 1) if is_named_a else None

    assert rewrite('sum by (x) (rate(a{y="1"}[5m] offset 1m)) > c', renamed) == (
        'sum by (x) (rate(b{y="1"}[5m] offset 1m)) > c'
    )
    assert rewrite("max_over_time(a[1h:1m])", renamed) == "max_over_time(b[1h:1m])"
    assert rewrite("sum(c)  >  1", renamed) == "sum(c)  >  1"
