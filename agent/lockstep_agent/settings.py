"""The agent's own configuration file: the options of the command, in TOML, by their names."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

_NOT_OF_A_FILE = frozenset({"config", "once", "help"})
_MOST_BYTES = 1 << 20


def load_settings(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Takes the options of a file as defaults; the environment and the command line come first.

    Raises:
        click.UsageError: the file cannot be read, has an unknown key or a value of another type.
    """
    if path is None:
        return
    options = {
        _key(parameter): parameter
        for parameter in ctx.command.params
        if isinstance(parameter, click.Option) and _key(parameter) not in _NOT_OF_A_FILE
    }
    try:
        told = _checked(_read(path), options)
    except ValueError as error:
        raise click.UsageError(f"--config {path}: {error}") from error
    ctx.default_map = {options[key].name or key: value for key, value in told.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it is longer than {_MOST_BYTES} bytes; give a file of options")
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"it is no TOML: {error}") from error


def _checked(told: Mapping[str, Any], options: Mapping[str, click.Option]) -> dict[str, Any]:
    for key, value in told.items():
        option = options.get(key)
        if option is None:
            raise ValueError(f"unknown key {key!r}; known are {', '.join(sorted(options))}")
        if option.multiple:
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise ValueError(f"{key} is {value!r}; give a list of texts")
        elif isinstance(option.type, click.types.FloatParamType | click.types.IntParamType):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{key} is {value!r}; give a number")
        elif not isinstance(value, str):
            raise ValueError(f"{key} is {value!r}; give a text in quotation marks")
    return dict(told)


def _key(option: click.Parameter) -> str:
    """How the file writes an option: as the command line does, with underscores."""
    longest = max(option.opts, key=len)
    return longest.removeprefix("--").replace("-", "_")
