"""Makes command-line flags of the fields of a dataclass, and reads them from a TOML file too."""

import tomllib
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from pathlib import Path
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
    """A decorator that gives a click command one option per field of a dataclass, and --config.

    The TOML file of --config holds fields by name, such as ``learning_rate = 1e-3``. Given flags
    win over it, and it wins over the defaults.
    """

    def take_file(context: click.Context, _: click.Parameter, path: Path | None) -> None:
        if path is not None:
            context.default_map = _read_file(path, [one.name for one in fields(config)])

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
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=take_file,
            help="TOML file with flags by name, such as learning_rate = 1e-3; given flags win.",
        )(command)

    return decorate


def _read_file(path: Path, known: list[str]) -> dict[str, Any]:
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"--config {path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise click.UsageError(f"--config {path} is no TOML: {error}") from error
    for key, value in told.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else "its keys are the flags of --help"
            raise click.UsageError(f"--config {path}: unknown key {key!r}; {remedy}")
        if isinstance(value, dict):
            raise click.UsageError(f"--config {path}: {key} is a table; give it one value")
    return told


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
