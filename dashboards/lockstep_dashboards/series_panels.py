"""Panels that take title, unit and description from the catalogue's series they are about."""

from typing import Any

from lockstep_catalogue import Recorded, Series, Unit
from lockstep_dashboards.panel import Panel, Query, View

# Grafana's names of units.
UNITS = {
    Unit.NONE: "short",
    Unit.SECONDS: "s",
    Unit.BYTES: "bytes",
    Unit.BYTES_PER_SECOND: "Bps",
    Unit.RATIO: "percentunit",
    Unit.WATTS: "watt",
    Unit.JOULES: "joule",
    Unit.CELSIUS: "celsius",
    Unit.HERTZ: "hertz",
    Unit.LANES: "short",
}
_OPERATIONS = {
    "": "",
    "per_step": "per step",
    "rate": "per second",
    "newest": "",
    "max": "longest",
    "min_ratio": "lowest ratio",
}
_SPELLED = (
    *("BAR1", "CPU", "DRAM", "ECC", "ECN", "GPU", "HTTP", "MFU", "MIG", "NIC", "NVLink", "PCIe"),
    *("RDMA", "SLO", "SM", "SRAM", "TCP", "Xid"),
)
_WORDS = {word.lower(): word for word in _SPELLED}


def title_of(series: Series) -> str:
    """A title from a series' name: without prefix, part, ``_total`` and unit."""
    name, operation = series.name, ""
    if isinstance(series, Recorded):
        _, name, operation = series.name.split(":")
    stem = name.removesuffix("_total").removesuffix(f"_{series.unit.value}")
    if operation == "rate":  # seconds a second have no unit
        stem = stem.removesuffix(f"_{Unit.SECONDS.value}")
    ending = _OPERATIONS.get(operation, operation.replace("_", " "))
    # Other programs' names, and those of Sloth that ours follow, have no prefix and part.
    num_prefixes = 2 if stem.startswith("lockstep_") else 0
    words = [_WORDS.get(word, word) for word in [*stem.split("_")[num_prefixes:], *ending.split()]]
    title = " ".join(words)
    return title[:1].upper() + title[1:]


def panel(
    view: View,
    series: Series,
    *queries: Query,
    title: str = "",
    note: str = "",
    good: str = "",
    otherwise: str = "",
    unit: Unit | str | None = None,
    width: int = 12,
    height: int = 8,
    **fields: Any,
) -> Panel:
    """A panel that takes title, unit and description from the series it is about.

    ``title`` and ``unit``, one of the catalogue or of Grafana, are given where what is shown is
    not the series itself. In the description ``note`` says what the queries make of the series,
    ``good`` what good looks like, ``otherwise`` what to do when it is not; ``fields`` are further
    fields of the panel.
    """
    words = [
        note,
        series.help,
        good and f"Good: {good}",
        otherwise and f"Otherwise: {otherwise}",
        f"Series: {series.name}.",
    ]
    return Panel(
        view=view,
        title=title or title_of(series),
        description=" ".join(word for word in words if word),
        unit=unit if isinstance(unit, str) else UNITS[unit or series.unit],
        queries=queries,
        width=width,
        height=height,
        **fields,
    )
