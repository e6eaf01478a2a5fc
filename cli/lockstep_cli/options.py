"""Options that several commands share: their types, and the file of ``--config``."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click
from click.core import ParameterSource

from lockstep_records.text.documents import read_toml
from lockstep_records.text.durations import REMEDY, format_duration, parse_duration

_HIGHEST_PORT = 65_535
Command = TypeVar("Command", bound=Callable[..., Any])


@contextmanager
def bad_input(*more: type[Exception]) -> Iterator[None]:
    """What its block raises as a ValueError, or one of these types, is a usage error: exit 2."""
    kinds: tuple[type[Exception], ...] = (ValueError, *more)
    try:
        yield
    except kinds as error:
        raise click.UsageError(str(error)) from error


def refuse_others(allowed: Iterable[str], when: str) -> None:
    """A usage error where the command line gives the running command an option besides these."""
    context, own = click.get_current_context(), {*allowed}
    others = [
        each.opts[0]
        for each in context.command.params
        if each.name not in own
        and context.get_parameter_source(str(each.name)) is ParameterSource.COMMANDLINE
    ]
    if others:
        raise click.UsageError(f"{', '.join(others)}: not {when}")


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """An option of a command, whose default ``--help`` shows."""
    return click.option(*names, show_default=True, **settings)


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """What a function makes of the text of an option; its ValueError is a usage error."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value; a default of another type is taken as it is."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FiniteRange(click.FloatRange):  # noqa: TID251  # it takes nan and inf; this class does not
    """A number between two bounds; nan and inf are refused."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; a usage error names what was given."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} must be a finite number.", param, ctx)
        return number


class DurationRange(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A duration such as ``500ms``, ``5s`` or ``2m`` between two bounds; gives seconds."""

    name = "duration"

    def __init__(self, shortest_seconds: float = 0.0, longest_seconds: float | None = None) -> None:
        self._shortest, self._longest = shortest_seconds, longest_seconds

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds; a usage error names what was given and what would be right."""
        if isinstance(value, int | float):  # a default, in seconds already
            return float(value)
        try:
            seconds = parse_duration(value)
        except ValueError:
            self.fail(f"{value!r} is not a duration; {REMEDY}.", param, ctx)
        if seconds < self._shortest or (self._longest is not None and seconds > self._longest):
            self.fail(f"{value} is not in the range {self._range()}.", param, ctx)
        return seconds

    def _range(self) -> str:
        shortest = format_duration(self._shortest)
        longest = "" if self._longest is None else f"<={format_duration(self._longest)}"
        return f"{shortest}<=x{longest}"


def read_address(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, an IPv6 host without its brackets; or ValueError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_number = port.isascii() and port.isdigit() and len(port) <= len(str(_HIGHEST_PORT))
    is_name = host.isprintable() and not any(letter.isspace() or letter == "/" for letter in host)
    if not colon or not host or not is_name or not is_number or int(port) > _HIGHEST_PORT:
        raise ValueError(
            f"{text!r} is not HOST:PORT with a port up to {_HIGHEST_PORT}, such as 127.0.0.1:9440"
        )
    return host, int(port)


rates_option = click.option(
    "--rates",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="LOCKSTEP_LEDGER_RATES",
    help="Rate card in YAML; where it has no rate, the price that the job declares holds.",
)


def timezone_option(help_text: str) -> Callable[[Command], Command]:
    """Adds ``--timezone``; its value is a ``ZoneInfo``."""
    return click.option(
        "--timezone",
        "zone",
        type=Parsed("NAME", _read_zone),
        envvar="LOCKSTEP_LEDGER_TIMEZONE",
        default="UTC",
        show_default=True,
        help=help_text,
    )


def _read_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError(
            f"{name!r:.80} is not a time zone of this machine; write a name such as Europe/Berlin."
        ) from error


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
    ctx.default_map = {options[key].name or key: value for key, value in values.items()}


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
        return "" if is_list else "give a list of texts"
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
