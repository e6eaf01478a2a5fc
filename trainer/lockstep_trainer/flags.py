"""Turns the fields of a dataclass into command-line flags, and reads them from a TOML file too."""

import math
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, Field, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from lockstep_records.shared.durations import REMEDY, format_duration
from lockstep_records.shared.options import DurationRange

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


def check_finite(config: Any) -> None:
    """Checks the numbers of a dataclass whose fields are flags.

    Raises:
        ValueError: one is NaN or infinite; the text names its flag.
    """
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{flag_name(setting)} {value} must be a finite number")


def options_from_fields(config: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that gives a click command one option per field of a dataclass, and --config.

    The TOML file of --config holds fields by name, such as ``learning_rate = 1e-3``. A flag on the
    command line wins over the file, and the file wins over the default.
    """
    settings = fields(config)

    def load_file(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is not None:
            context.default_map = _read_file(path, {setting.name: setting for setting in settings})

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(settings):
            assert setting.default is not MISSING
            option = click.option(
                flag_name(setting),
                type=setting.metadata["kind"],
                is_flag=setting.default is False,
                default=_spelled_default(setting),
                multiple=isinstance(setting.default, tuple),
                show_default=setting.default not in {False, "", ()},
                help=setting.metadata["help"],
            )
            command = option(command)
        # Eager, so that the file fills the defaults before click reads any other option.
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=load_file,
            help="TOML file with flags by name, such as steps = 100; given flags win.",
        )(command)

    return decorate


def _spelled_default(setting: "Field[Any]") -> Any:
    """The default as a user would write it, so that --help shows ``1m`` and not ``60.0``."""
    default: Any = setting.default
    return format_duration(default) if _is_duration(setting) else default


def _is_duration(setting: "Field[Any]") -> bool:
    return isinstance(setting.metadata["kind"], DurationRange)


def _read_file(path: Path, settings: dict[str, "Field[Any]"]) -> dict[str, Any]:
    """The values of a --config file by field name.

    Raises:
        click.UsageError: the file cannot be read, is not TOML, or has a key that is not a field.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"--config {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise click.UsageError(f"--config {path} is not TOML: {error}") from error
    for key, value in table.items():
        if key not in settings:
            near = get_close_matches(key, settings, n=1)
            remedy = f"did you mean {near[0]}?" if near else "its keys are the flags of --help"
            raise click.UsageError(f"--config {path}: unknown key {key!r}; {remedy}")
        if isinstance(value, dict):
            raise click.UsageError(f"--config {path}: {key} is a table; give it one value")
        # DurationRange takes a bare number for a default in seconds; a user has to name the unit.
        if _is_duration(settings[key]) and not isinstance(value, str):
            raise click.UsageError(f"--config {path}: {key} = {value} is not a duration; {REMEDY}")
    return table


def arguments_from(config: Any) -> list[str]:
    """The flags that make an equal value; fields at their defaults are left out."""
    arguments = []
    for setting in fields(config):
        value = getattr(config, setting.name)
        if isinstance(value, tuple):
            arguments += [text for part in value for text in (flag_name(setting), str(part))]
        elif value != setting.default:
            arguments.append(flag_name(setting))
            if _is_duration(setting):
                arguments.append(format_duration(value))
            elif value is not True:
                arguments.append(str(value))
    return arguments
