"""A field of a dataclass that is also an option of a command."""

from collections.abc import Callable
from dataclasses import MISSING, Field, field
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep_cli.options import DurationRange
from lockstep_records.text.durations import format_duration

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTION = "option"
_DAY_SECONDS = 86_400.0
_ANY_PATH = click.Path(path_type=Path)


def option(
    default: Any,
    help_text: str,
    metavar: str | None = None,
    /,
    **settings: Any,
) -> Any:
    """A field with its default, or what gives it, and with the option that sets it.

    Args:
        default: of the field.
        help_text: of the option.
        metavar: what the option's value is called, where its type does not say.
        settings: others of click's; ``flag`` where it is not the field's name.
    """
    metadata = {_OPTION: settings | {"help": help_text, "metavar": metavar}}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def path(
    default: str | None,
    help_text: str,
    metavar: str | None = "PATH",
    kind: click.Path = _ANY_PATH,
    /,
    **settings: Any,
) -> Any:
    """A field and option that is a path."""
    value = None if default is None else Path(default)
    return option(value, help_text, metavar, type=kind, **settings)


def duration(
    default: float | None,
    help_text: str,
    least: float = 0.0,
    most: float = _DAY_SECONDS,
    /,
    **settings: Any,
) -> Any:
    """A field in seconds whose option is a duration."""
    return option(default, help_text, type=DurationRange(least, most), **settings)


def click_option(option_field: "Field[Any]") -> Callable[[Command], Command]:
    """The decorator that gives a command the option of a field."""
    settings = dict(option_field.metadata[_OPTION])
    plain = option_field.name.removesuffix("_seconds").replace("_", "-")
    flag = settings.pop("flag", f"--{plain}")
    default = _default_text(option_field.default)
    if default is not None and not settings.get("is_flag"):
        settings = {"default": default, "show_default": True} | settings
    return click.option(flag, option_field.name, **settings)


def _default_text(default: Any) -> Any:
    """A default as written on the command line; None without one."""
    if default is MISSING or default == ():
        return None
    if isinstance(default, float):
        return format_duration(default)
    return str(default) if isinstance(default, Path) else default
