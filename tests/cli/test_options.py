"""What commands ask of a number and of an address, and what they say when it is none."""

import pytest
from click import BadParameter
from hypothesis import given
from hypothesis import strategies as st

from lockstep_cli.options import FiniteRange, read_address


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "1e999"])
def test_what_is_no_number_to_count_with_is_refused_whatever_the_bounds(text: str) -> None:
    for bounds in (FiniteRange(), FiniteRange(0), FiniteRange(max=1)):
        with pytest.raises(BadParameter):
            bounds.convert(text, None, None)


def test_a_number_within_the_bounds_is_taken_and_one_outside_is_not() -> None:
    bounds = FiniteRange(0.5, 2)
    assert [bounds.convert(text, None, None) for text in ("0.5", "2", "1.25")] == [0.5, 2.0, 1.25]
    for text in ("0.49", "2.01", "much"):
        with pytest.raises(BadParameter):
            bounds.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9440", "127.0.0.1", 9440),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        ("node-7.cluster:29500", "node-7.cluster", 29500),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert read_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        ":80",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "host:\u0661",
        "a b:80",
        "http://h:80",
    ],
)
def test_what_is_no_address_is_refused_by_its_own_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT") as refused:
        read_address(text)
    assert repr(text) in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        host, port = read_address(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535
