"""Turns the fields of a dataclass into command-line flags."""

from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from typing import Any, TypeVar, cast

import click

from lockstep_cli.options import DurationRange
from lockstep_cli.settings_file import config_option
from lockstep_records.text.durations import format_duration

T = TypeVar("T")
_MAX_COUNT = 10**9
SIZE = click.IntRange(1, 65_536)
POSITIVE = click.IntRange(1, _MAX_COUNT)
NOT_NEGATIVE = click.IntRange(0, _MAX_COUNT)


def flag(default: T, kind: "click.ParamType[Any]", text: str) -> T:
    """A dataclass field that is a flag too: its default, click type and help text."""
    setting: Any = field(default=default, metadata={"kind": kind, "help": text})
    return cast("T", setting)


def flag_name(setting: "Field[Any]") -> str:
    """The flag of a field, such as ``--learning-rate``."""
    return "--" + setting.name.replace("_", "-")


def options_from_fields(config: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a click command one option per field of a dataclass, and --config."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(fields(config)):
            assert setting.default is not MISSING
            option = click.option(
                flag_name(setting),
                type=setting.metadata["kind"],
                is_flag=setting.default is False,
                default=_spelled(setting, setting.default),
                multiple=isinstance(setting.default, tuple),
                show_default=setting.default not in {False, "", ()},
                help=setting.metadata["help"],
            )
            command = option(command)
        return config_option(command)

    return decorate


def _spelled(setting: "Field[Any]", value: Any) -> Any:
    """A value as a user would write it, so that --help shows ``1m`` and not ``60.0``."""
    is_duration = isinstance(setting.metadata["kind"], DurationRange)
    return format_duration(value) if is_duration else value


def arguments_from(config: Any) -> list[str]:
    """The flags that make an equal value; fields at their defaults are left out."""
    arguments = []
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, tuple):
            arguments += [text for part in value for text in (flag_name(setting), str(part))]
        elif value != setting.default:
            arguments.append(flag_name(setting))
            if value is not True:
                arguments.append(str(_spelled(setting, value)))
    return arguments
