"""A rate card is read strictly, with the place of what is wrong; the most specific rate holds."""

from datetime import date
from pathlib import Path

import pytest

from lockstep_outcomes.prices.rate_card import RateCard, read_rate_card

RATE = "{from: 2026-01-01, price_per_gpu_hour: 2.10, currency: EUR}"


def read(folder: Path, text: str) -> RateCard:
    path = folder / "rates.yaml"
    path.write_text(text, encoding="utf-8")
    return read_rate_card(path)


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)


def rates(*changes: tuple[str, str]) -> str:
    """A rate, and one more for each change of its text."""
    return "rates:\n" + "".join(f"  - {RATE.replace(*change)}\n" for change in (("", ""), *changes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rates(("EUR", "eur")), ":3: rates[1].currency 'eur': Expected `str` matching regex"),
        (rates(("01-01", "13-01")), ":3: rates[1].from '2026-13-01'"),
        (rates(("2.10", "-1")), ":3: rates[1].price_per_gpu_hour '-1': Expected `float` >= 0.0"),
        (rates(("2.10", "nan")), ":3: rates[1].price_per_gpu_hour 'nan': Expected `float`"),
        (rates(("2.10", "1e99")), "price_per_gpu_hour '1e99': Expected `float` <="),
        (rates(("2.10", "two")), "rates[1].price_per_gpu_hour 'two'"),
        (rates(("price_per", "per")), "unknown field `per_gpu_hour`"),
        (rates((" currency: EUR", "")), "missing required field `currency`"),
        (rates(("2.10", "3")), "rates[1] has date, model and project of another"),
        ("currency: EUR\ncurrency: USD\n", "line 2: a key twice"),
        ("rate: []", "unknown field `rate`"),
        ("rates: [", "is not YAML"),
        ("- a", "rates.yaml:1:"),
        ("capacity: [{from: 2026-01-01, cluster: a, installed: b}]", "capacity[0].installed 'b'"),
        (BOMB, "more than 50,000 values"),
        ("rates: " + "[" * 1200, "is not YAML"),
    ],
)
def test_a_card_that_is_wrong_is_refused_with_its_place(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ValueError, match=r"rates\.yaml") as error:
        read(tmp_path, text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_empty_card_and_none_have_no_rates(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing yet\n") == read_rate_card(None) == RateCard()
    with pytest.raises(ValueError, match="cannot be read"):
        read_rate_card(tmp_path / "absent.yaml")


def test_the_digest_is_of_what_the_card_says_and_not_of_its_layout(tmp_path: Path) -> None:
    first = read(tmp_path, f"rates:\n  - {RATE}\n")
    assert read(tmp_path, f"# a comment\nrates: [{RATE}]").digest == first.digest
    assert read(tmp_path, f"rates: [{RATE.replace('2.10', '2.11')}]").digest != first.digest


@pytest.mark.parametrize(
    ("day", "project", "model", "price"),
    [
        ((2025, 12, 31), "speech", "NVIDIA H200", None),
        ((2026, 1, 1), "speech", "NVIDIA H200", "2"),
        ((2026, 1, 1), "speech", "NVIDIA L4", "1"),
        ((2026, 2, 1), "speech", "nvidia h200", "3"),
        # The project comes before the model, and the model before the date.
        ((2026, 2, 1), "vision", "NVIDIA H200", "4"),
        ((2026, 3, 1), "speech", "NVIDIA H200", "3"),
        ((2026, 3, 1), "speech", "NVIDIA L4", "5"),
        ((2026, 2, 1), "speech", "NVIDIA H200 NVL", "6"),
        ((2026, 2, 1), "speech", "", "1"),
    ],
)
def test_the_most_specific_rate_whose_date_has_come_holds(
    tmp_path: Path, day: tuple[int, int, int], project: str, model: str, price: str | None
) -> None:
    rows = [
        ("2026-01-01", "*", "*", 1), ("2026-01-01", "*h200*", "*", 2),
        ("2026-02-01", "*H200*", "*", 3), ("2026-01-15", "*", "vision", 4),
        ("2026-03-01", "*", "*", 5), ("2026-02-01", "*H200 NVL", "*", 6),
    ]  # fmt: skip
    lines = [
        f'  - {{from: {begin}, gpu_model: "{pattern}", project: "{name}",'
        f" price_per_gpu_hour: {amount}, currency: EUR}}\n"
        for begin, pattern, name, amount in rows
    ]
    rate = read(tmp_path, "rates:\n" + "".join(lines)).rate(date(*day), project, model)
    assert (None if rate is None else f"{rate.price_per_gpu_hour:g}") == price
