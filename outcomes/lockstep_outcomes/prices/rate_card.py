"""The rate card: what an hour of a GPU costs, what may be spent, and how many GPUs there are."""

import hashlib
import re
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from lockstep_records.text.documents import DocumentError, read_document
from lockstep_records.text.yaml_documents import check_yaml

_MOST_MONEY = 10**12
_LOCATION = re.compile(r"(.*) - at `\$(.*)`", re.DOTALL)
_WILDCARDS = "*?[]"
Currency = Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Money = Annotated[float, msgspec.Meta(ge=0, le=_MOST_MONEY)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True,
           rename={"begin": "from"}):  # fmt: skip
    """A row of the card: it holds from the begin of a day until a later one takes its place."""

    begin: date


class Rate(_Row, frozen=True, kw_only=True):
    """What an hour of a GPU costs, by the driver's or the scheduler's name of its model."""

    price_per_gpu_hour: Money
    currency: Currency
    gpu_model: Name = "*"
    project: Name = "*"


class Budget(_Row, frozen=True, kw_only=True):
    """What a project, or all with ``*``, may spend in a month."""

    amount: Money
    currency: Currency
    project: Name = "*"


class Capacity(_Row, frozen=True, kw_only=True):
    """GPUs of a cluster: installed, and of those the ones that nobody can or everybody may use."""

    cluster: Name
    installed: Count
    gpu_model: Name = "*"
    reserved: Count = 0
    drained: Count = 0


class RateCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rows of a file, and the currency of prices that jobs declare without one."""

    rates: tuple[Rate, ...] = ()
    budgets: tuple[Budget, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    currency: Currency | None = None

    def __post_init__(self) -> None:
        """Refuses two rates of which nobody could say which one holds."""
        keys = [(rate.begin, rate.gpu_model.lower(), rate.project) for rate in self.rates]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise ValueError(f"rates[{index}] has date, model and project of another; keep one")

    @property
    def digest(self) -> str:
        """Names what the card says, whatever its file looks like."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def rate(self, day: date, project: str, gpu_model: str) -> Rate | None:
        """The most specific rate of a day: of the project, then of the model, then the newest.

        Of two patterns the one with more letters is more specific, then the one further down.
        """
        rates = [
            rate
            for rate in reversed(self.rates)
            if rate.begin <= day
            and rate.project in {"*", project}
            and match_model(gpu_model, rate.gpu_model)
        ]
        return max(rates, key=_specificity, default=None)


def _specificity(rate: Rate) -> tuple[bool, int, date]:
    letters = sum(letter not in _WILDCARDS for letter in rate.gpu_model)
    return rate.project != "*", letters, rate.begin


def match_model(gpu_model: str, pattern: str) -> bool:
    """Whether a pattern such as ``*h200*`` names a model, in upper or lower case."""
    return fnmatchcase(gpu_model.lower(), pattern.lower())


def read_rate_card(path: Path | None) -> RateCard:
    """The rate card of a YAML file, an empty one without; a ValueError has line and field."""
    if path is None:
        return RateCard()
    values: dict[str, tuple[int, str]] = {}
    try:
        content = read_document(path)
        check_yaml(content)
        # Every value is read as text: YAML would make a float of 2.10 and false of NO.
        node = yaml.compose(content, yaml.BaseLoader)
        return msgspec.convert(_convert(node, "", values), RateCard, strict=False)
    except msgspec.ValidationError as error:
        located = _LOCATION.fullmatch(str(error))
        message, field = (located[1], located[2]) if located else (str(error), "")
        line, value = values[field]
        where = f"{field.lstrip('.')}{value}".strip()
        raise ValueError(": ".join(filter(None, (f"{path}:{line}", where, message)))) from error
    except (yaml.YAMLError, DocumentError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error


def _convert(node: yaml.Node | None, field: str, values: dict[str, tuple[int, str]]) -> Any:
    """Texts, lists and mappings of a node; notes line and text of each by its field."""
    line = 1 if node is None else node.start_mark.line + 1
    values[field] = (line, f" {node.value!r:.80}" if isinstance(node, yaml.ScalarNode) else "")
    if isinstance(node, yaml.ScalarNode):
        return node.value
    if isinstance(node, yaml.SequenceNode):
        return [_convert(each, f"{field}[{i}]", values) for i, each in enumerate(node.value)]
    fields: dict[str, Any] = {}
    for key, value in node.value if node else ():
        if not isinstance(key, yaml.ScalarNode) or key.value in fields:
            raise yaml.YAMLError(f"line {key.start_mark.line + 1}: a key twice, or not a name")
        fields[key.value] = _convert(value, f"{field}.{key.value}", values)
    return fields
