"""Options of ``lockstep alerts generate`` that choose the ruler and name its objects."""

import re
from collections.abc import Callable
from typing import Any

import click

from lockstep_alerts.writers.formats import FORMATS, Target

LACKS = ("keep_firing_for",)
_PAIR = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9./_-]{0,251}[A-Za-z0-9])?)=([A-Za-z0-9._-]{0,63})")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_OPTIONS = (
    click.option(
        "--format",
        "ruler",
        type=click.Choice(tuple(FORMATS)),
        default="prometheus",
        show_default=True,
        help="What evaluates the rules: files, objects of an operator, or namespaces.",
    ),
    click.option(
        "--lacks",
        type=click.Choice(LACKS),
        multiple=True,
        help="Field of rules that the ruler is too old to know; repeatable.",
    ),
    click.option(
        "--histograms",
        type=click.Choice(("classic", "native")),
        default="classic",
        show_default=True,
        help="How the ruler stores histograms; native needs Prometheus 3 that converts them.",
    ),
    click.option(
        "--namespace", default="lockstep", show_default=True, help="Namespace of the objects."
    ),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Label by which an operator selects the objects; repeatable.",
    ),
    click.option(
        "--secret",
        default="lockstep-receivers",
        show_default=True,
        help="Secret in which the operator finds each secret's file by its base name.",
    ),
)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which reads them by ``read_target``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_target(
    *,
    ruler: str,
    lacks: tuple[str, ...],
    histograms: str,
    namespace: str,
    labels: tuple[str, ...],
    secret: str,
) -> Target:
    """The ruler that the options choose, and the names of its objects."""
    return Target(
        format=ruler,
        lacks=lacks,
        native_histograms=histograms == "native",
        namespace=_name("--namespace", namespace),
        labels=dict(map(_pair, labels)),
        key_store=_name("--secret", secret),
    )


def _pair(text: str) -> tuple[str, str]:
    matched = _PAIR.fullmatch(text)
    if not matched:
        raise click.UsageError(f"--label {text!r}: write KEY=VALUE, such as release=monitoring")
    return matched[1], matched[2]


def _name(flag: str, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise click.UsageError(f"{flag} {text!r}: write small letters, digits and dashes")
    return text
