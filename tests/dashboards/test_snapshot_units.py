"""Values are written as Grafana writes them, times as people write them, colours are safe."""

import math

import pytest

from lockstep_dashboards.snapshot.colors import area_colors, css_color, heat_scale, series_styles
from lockstep_dashboards.snapshot.units import scale_of, value_text
from lockstep_dashboards.snapshot.window import Window, parse_time

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
        (2500, "ms", "2.5 s"),
        (3 * 1024**3, "bytes", "3 GiB"),
        (1e9, "Bps", "1 GB/s"),
        (0.9725, "percentunit", "97.25 %"),
        (12.0, "percent", "12 %"),
        (1234, "short", "1.234 K"),
        (999.9, "short", "999.9"),
        (2.5e6, "cps", "2.5 Mil c/s"),
        (0.00002, "short", "0.00002"),
        (450, "watt", "450 W"),
        (61.5, "celsius", "61.5 °C"),
        (1980e6, "hertz", "1.98 GHz"),
        (12_500, "currencyUSD", "$12.5 K"),
        (7, "suffix: GPUs", "7  GPUs"),
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


def test_the_points_of_a_window_are_whole_steps_and_at_least_a_scrape_apart() -> None:
    window = Window.of(NOW - 907, NOW, 15.0)
    assert window.step_seconds == 15
    assert window.begin % 15 == 0
    assert window.begin <= NOW - 907
    assert window.last <= NOW
    assert window.built_in["__rate_interval"] == "60s"
    assert Window.of(NOW - 30 * 86_400, NOW, 15.0).num_points <= 242


def test_a_window_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="must end later"):
        Window.of(NOW, NOW - 1, 15.0)


def luminance(color: str) -> float:
    """Relative luminance by WCAG 2.1."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    bright, dim = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#1a1e24"])
def test_lines_stand_out_from_both_grounds(ground: str) -> None:
    for color, _ in series_styles(7):
        assert contrast(color, ground) > 1.9, color


def test_series_stay_apart_when_the_colors_are_used_up() -> None:
    assert len(set(series_styles(28))) == 28
    assert len(set(area_colors(14))) == 14


@pytest.mark.parametrize(("scheme", "is_rising"), [("Viridis", True), ("Oranges", False)])
def test_a_heat_scale_reads_in_grey(scheme: str, is_rising: bool) -> None:
    light = [luminance(color) for _, color in heat_scale(scheme)]
    assert light == sorted(light, reverse=not is_rising)
    assert heat_scale("another", 0.5)[5][0] == pytest.approx(0.25)


def test_a_color_is_never_free_text() -> None:
    assert css_color("red;background:url(//evil)", "x") == "x"
    assert css_color("url(javascript:1)", "x") == "x"
    assert css_color("semi-dark-orange") == css_color("orange")
    assert not math.isnan(luminance(css_color("#123456")))
