"""How both formats write label values, numbers and the head of a family."""

import math

from lockstep_catalogue import Endpoint, Kind, Metric, metrics_of


def escaped(value: str) -> str:
    """A label value escaped for quotation marks."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
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


def _text_head(metric: Metric) -> bytes:
    # Unlike OpenMetrics this format does not escape quotation marks in help texts.
    help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric.kind.value}\n".encode()


def _openmetrics_head(metric: Metric) -> bytes:
    # OpenMetrics names the family of a counter without the suffix of its sample.
    name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
    unit = f"# UNIT {name} {metric.unit.value}\n" if metric.unit.value else ""
    head = f"# HELP {name} {escaped(metric.help)}\n# TYPE {name} {metric.kind.value}\n{unit}"
    return head.encode()


HEADS = {
    metric.name: (_text_head(metric), _openmetrics_head(metric))
    for metric in metrics_of(Endpoint.AGENT)
}
"""What precedes the series of a metric in both formats, by its name."""
