"""Values are written as Grafana writes them, times as people write them, colours are safe."""

import pytest

from lockstep_dashboards.scope import Scope
from lockstep_dashboards.snapshot.views import scale_of, series_styles, value_text
from lockstep_records.text.durations import parse_time

NOW = 1_795_384_800.0  # 2026-11-22 22:00:00 UTC


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.00125, "s", "1.25 ms"),
        (0.0, "s", "0 s"),
        (59.99, "s", "59.99 s"),
        (204.0, "s", "3.4 min"),
        (86_400 * 10, "s", "10 days"),
        (-0.002, "s", "\N{MINUS SIGN}2 ms"),
        (3 * 1024**3, "bytes", "3 GiB"),
        (1e9, "Bps", "1 GB/s"),
        (0.9725, "percentunit", "97.25 %"),
        (1234, "short", "1.234 K"),
        (999.9, "short", "999.9"),
        (2.5e6, "cps", "2.5 Mil c/s"),
        (0.00002, "short", "0.00002"),
        (450, "watt", "450 W"),
        (61.5, "celsius", "61.5 °C"),
        (1980e6, "hertz", "1.98 GHz"),
        (7, "a unit nobody knows", "7 a unit nobody knows"),
    ],
)
def test_a_value_has_the_unit_that_grafana_gives_it(value: float, unit: str, text: str) -> None:
    assert value_text(value, unit) == text


def test_decimals_are_kept_where_a_field_sets_them() -> None:
    assert value_text(0.5, "percentunit", 2) == "50.00 %"


def test_the_scale_of_an_axis_follows_its_largest_value() -> None:
    scale = scale_of("s", 0.25)
    assert (scale.divisor, scale.suffix) == (1e-3, " ms")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("now", NOW),
        ("-15m", NOW - 900),
        ("now-2h", NOW - 7200),
        ("2026-11-22T21:40:00Z", NOW - 1200),
        ("2026-11-22T21:40:00", NOW - 1200),
        ("2026-11-22T22:40:00+01:00", NOW - 1200),
        ("1795384800", NOW),
        ("1795384800123", NOW + 0.123),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_time(text, NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-15", "15m", "now+1h", "12", "2026-13-01", "-1y"]
)
def test_what_is_no_time_is_refused_with_the_spellings_that_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time; write now, .* -15m"):
        parse_time(text, NOW)


def scope(range_seconds: float) -> Scope:
    return Scope(end=NOW, range_seconds=range_seconds, scrape_seconds=15.0, max_points=240)


def test_the_points_of_a_window_are_whole_steps_and_at_least_a_scrape_apart() -> None:
    window = scope(907)
    assert window.step_seconds == 15
    assert window.start % 15 == 0
    assert window.start <= NOW - 907
    assert window.start + (window.num_points - 1) * 15 <= NOW
    assert window.built_in["__rate_interval"] == "60s"
    assert scope(30 * 86_400).num_points <= 242
    assert scope(30 * 86_400).built_in["__rate_interval"] == "10815s"


def test_series_stay_apart_when_the_colors_are_used_up() -> None:
    assert len(set(series_styles(27))) == 27
