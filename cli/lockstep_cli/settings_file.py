"""The file of ``--config``: the options of a command, in TOML, by their names."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from lockstep_cli.options import DurationRange
from lockstep_records.text.documents import read_toml
from lockstep_records.text.durations import REMEDY

# A file that names another file, or that ends a program after one scrape, makes no sense.
_COMMAND_LINE_ONLY = frozenset({"config", "once", "help"})


def load_settings(ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """Makes the values of a file the defaults, below environment and options; or UsageError."""
    if path is None:
        return
    options = {
        _key(parameter): parameter
        for parameter in ctx.command.params
        if isinstance(parameter, click.Option) and _key(parameter) not in _COMMAND_LINE_ONLY
    }
    try:
        values = read_toml(path)
        _check(values, options)
    except ValueError as error:
        raise click.UsageError(f"--config {path}: {error}") from error
    ctx.default_map = {
        options[key].name or key: [value] if _is_one_of_many(options[key], value) else value
        for key, value in values.items()
    }


def _is_one_of_many(option: click.Option, value: object) -> bool:
    # Files of before name one folder as a text.
    is_path = isinstance(option.type, click.Path)
    return option.multiple and is_path and isinstance(value, str)


def _check(values: Mapping[str, Any], options: Mapping[str, click.Option]) -> None:
    for key, value in values.items():
        option = options.get(key)
        if option is None:
            near = get_close_matches(key, options, n=1)
            remedy = f"did you mean {near[0]}?" if near else "its keys are the options of --help"
            raise ValueError(f"unknown key {key!r}; {remedy}")
        if remedy := _remedy(option, value):
            raise ValueError(f"{key} is {value!r}; {remedy}")


def _remedy(option: click.Option, value: object) -> str:
    if option.multiple:
        is_list = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        is_fit = is_list or _is_one_of_many(option, value)
        return "" if is_fit else "give a list of texts"
    if option.is_flag:
        return "" if isinstance(value, bool) else "give true or false"
    if isinstance(option.type, DurationRange):
        # A bare number would be taken for seconds here and refused on the command line.
        return "" if isinstance(value, str) else f"{REMEDY}, in quotation marks"
    if isinstance(option.type, click.types.IntParamType):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return "" if is_whole else "give a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if is_number else "give a number"
    return "" if isinstance(value, str) else "give a text in quotation marks"


def _key(option: click.Parameter) -> str:
    longest = max(option.opts, key=len)
    return longest.removeprefix("--").replace("-", "_")


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    callback=load_settings,
    is_eager=True,
    expose_value=False,
    help="TOML file of these options, dashes as underscores; the command line overrides it.",
)
"""The option ``--config``; eager, so that the file sets the defaults of the others."""
