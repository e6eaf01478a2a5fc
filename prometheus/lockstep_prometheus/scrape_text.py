"""The text of a scrape: label values, numbers, samples and heads, in both formats."""

import math
from collections.abc import Mapping

from lockstep_catalogue.metric import Kind, Metric

OPENMETRICS = "application/openmetrics-text"
TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = f"{OPENMETRICS}; version=1.0.0; charset=utf-8; escaping=underscores"


def escape(value: str) -> str:
    """A label value escaped for quotation marks."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def write_number(value: float) -> str:
    """A number as Prometheus' Go programs write it, and the library too."""
    real = float(value)
    if not math.isfinite(real):
        return "NaN" if math.isnan(real) else "+Inf" if real > 0 else "-Inf"
    text = repr(real)
    point = text.find(".")
    if real > 0 and point > 6:  # noqa: PLR2004  # seven digits and more before the point
        mantissa = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{point - 1:02d}"
    return text


def write_stem(name: str, labels: Mapping[str, str]) -> str:
    """Name and labels of a sample: its line up to the value."""
    if not labels:
        return name
    inside = ",".join(f'{label}="{escape(value)}"' for label, value in labels.items())
    return f"{name}{{{inside}}}"


def write_head(metric: Metric, *, is_openmetrics: bool) -> str:
    """The lines before the samples of a metric, without the end of the last one."""
    name = metric.name
    # Only OpenMetrics escapes quotation marks in help texts.
    help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    unit = ""
    if is_openmetrics:
        help_text = escape(metric.help)
        # OpenMetrics names the family of a counter without the suffix of its sample.
        if metric.kind is Kind.COUNTER:
            name = name.removesuffix("_total")
        unit = f"\n# UNIT {name} {metric.unit.value}" if metric.unit.value else ""
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.kind.value}{unit}"
