"""What the commands of several rooms ask of a number and of an address."""

import math
from typing import Any

import click

_HIGHEST_PORT = 65_535


class FiniteRange(click.FloatRange):  # noqa: TID251  # the one place that mends it
    """A number between two bounds; nan and inf, which Python calls floats, are none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; a usage error names what was given."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} must be a finite number.", param, ctx)
        return number


def read_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``; an IPv6 host stands in brackets, which are taken off.

    Raises:
        ValueError: it is none.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    whole = port.isascii() and port.isdigit() and len(port) <= len(str(_HIGHEST_PORT))
    named = host.isprintable() and not any(letter.isspace() or letter == "/" for letter in host)
    if not colon or not host or not named or not whole or int(port) > _HIGHEST_PORT:
        raise ValueError(
            f"{text!r} is not HOST:PORT with a port up to {_HIGHEST_PORT}, such as 127.0.0.1:9440"
        )
    return host, int(port)
