"""A field of a dataclass that is also an option of a command."""

from collections.abc import Callable
from dataclasses import MISSING, Field, field
from pathlib import Path
from typing import Any, TypeVar

import click

from lockstep_records.shared.durations import format_duration

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTION = "option"


def option(default: Any, flag: str, /, **settings: Any) -> Any:
    """A field with its default, or what gives it, and with the option that sets it."""
    metadata = {_OPTION: (flag, settings)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def click_option(option_field: "Field[Any]") -> Callable[[Command], Command]:
    """The decorator that gives a command the option of a field."""
    flag, settings = option_field.metadata[_OPTION]
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
