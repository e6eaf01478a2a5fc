"""Makes command-line flags of the fields of a dataclass: what a flag takes, and its help."""

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

import click

_MAX_COUNT = 10**9
SIZE = click.IntRange(1, 65_536)
POSITIVE = click.IntRange(1, _MAX_COUNT)
NOT_NEGATIVE = click.IntRange(0, _MAX_COUNT)


def flag(kind: "click.ParamType[Any]", text: str) -> dict[str, Any]:
    """The metadata that makes a field a flag too."""
    return {"kind": kind, "help": text}


def flag_name(one: "Field[Any]") -> str:
    """The flag of a field, such as ``--learning-rate``."""
    return "--" + one.name.replace("_", "-")


def flags_of(config: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a click command one option per field of a dataclass."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(fields(config)):
            assert one.default is not MISSING
            option = click.option(
                flag_name(one),
                type=one.metadata["kind"],
                is_flag=one.default is False,
                default=one.default,
                multiple=isinstance(one.default, tuple),
                show_default=one.default is not False,
                help=one.metadata["help"],
            )
            command = option(command)
        return command

    return decorate


def arguments_of(config: Any) -> list[str]:
    """The flags that make a value again, defaults left out."""
    arguments = []
    for one in fields(config):
        value = getattr(config, one.name)
        if isinstance(value, tuple):
            arguments += [text for item in value for text in (flag_name(one), str(item))]
        elif value != one.default:
            arguments += [flag_name(one)] if value is True else [flag_name(one), str(value)]
    return arguments
