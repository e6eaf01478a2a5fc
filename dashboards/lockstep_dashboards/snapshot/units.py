"""Values with their unit, as Grafana writes them: 1.25 ms, 3.4 min, 12 GiB, 97.2 %."""

import math
from dataclasses import dataclass

_MINUTE, _HOUR, _DAY, _WEEK, _YEAR = 60.0, 3600.0, 86400.0, 604_800.0, 31_557_600.0
_TIME = (
    (1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (_MINUTE, "min"), (_HOUR, "h"),
    (_DAY, "days"), (_WEEK, "weeks"), (_YEAR, "years"),
)  # fmt: skip
_COUNTS = ((1.0, ""), (1e3, "K"), (1e6, "Mil"), (1e9, "Bil"), (1e12, "Tri"))
_DIGITS = 4
_LEAST_WEEKS = 8  # below it, days are read more easily
_MINUS = "\N{MINUS SIGN}"


def _decimal(unit: str) -> tuple[tuple[float, str], ...]:
    prefixes = ("", "k", "M", "G", "T", "P", "E")
    return tuple((1000.0**power, f"{prefix}{unit}") for power, prefix in enumerate(prefixes))


def _small_too(unit: str) -> tuple[tuple[float, str], ...]:
    prefixes = ("n", "µ", "m", "", "k", "M", "G", "T", "P")
    return tuple((1000.0 ** (n - 3), f"{prefix}{unit}") for n, prefix in enumerate(prefixes))


def _binary(unit: str) -> tuple[tuple[float, str], ...]:
    prefixes = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
    return tuple((1024.0**power, f"{prefix}{unit}") for power, prefix in enumerate(prefixes))


def _counted(unit: str) -> tuple[tuple[float, str], ...]:
    return tuple((factor, f"{prefix} {unit}".strip()) for factor, prefix in _COUNTS)


_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "none": ((1.0, ""),),
    "short": _COUNTS,
    "locale": ((1.0, ""),),
    "s": _TIME,
    "bytes": _binary("B"),
    "decbytes": _decimal("B"),
    "bits": _binary("b"),
    "decbits": _decimal("b"),
    "Bps": _decimal("B/s"),
    "binBps": _binary("B/s"),
    "bps": _decimal("b/s"),
    "binbps": _binary("b/s"),
    "percentunit": ((0.01, "%"),),
    "percent": ((1.0, "%"),),
    "hertz": _decimal("Hz"),
    "watt": _small_too("W"),
    "kwatt": ((1.0, "kW"), (1e3, "MW")),
    "joule": _small_too("J"),
    "kwatth": ((1.0, "kWh"), (1e3, "MWh")),
    "watth": _decimal("Wh"),
    "celsius": ((1.0, "°C"),),
    "flops": _decimal("FLOP/s"),
    "cps": _counted("c/s"),
    "ops": _counted("ops/s"),
    "reqps": _counted("req/s"),
    "rps": _counted("rd/s"),
    "wps": _counted("wr/s"),
    "pps": _decimal("p/s"),
    "cpm": _counted("c/min"),
}
_TIMES = {
    "ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "m": _MINUTE, "h": _HOUR, "d": _DAY, "clocks": 1.0,
    "dtdurations": 1.0, "dtdurationms": 1e-3, "dthms": 1.0,
}  # fmt: skip
_CURRENCIES = {"currencyUSD": "$", "currencyEUR": "€", "currencyGBP": "£", "currencyJPY": "¥"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How values of a size are written: divided by ``divisor``, between prefix and suffix."""

    divisor: float
    prefix: str
    suffix: str

    def text(self, value: float, decimals: int | None = None) -> str:
        """A value with its unit."""
        number = value / self.divisor
        sign = _MINUS if number < 0 else ""
        return f"{sign}{self.prefix}{digits(abs(number), decimals)}{self.suffix}"


def scale_of(unit: str, magnitude: float) -> Scale:
    """The scale in which values of a magnitude are read most easily."""
    size = abs(magnitude)
    if unit in _CURRENCIES or unit.startswith("currency"):
        symbol = _CURRENCIES.get(unit, f"{unit.removeprefix('currency')} ")
        step = _best(_COUNTS, size)
        return Scale(divisor=step[0], prefix=symbol, suffix=_spaced(step[1]))
    if unit in _TIMES:
        step = _best(_TIME, size * _TIMES[unit])
        return Scale(divisor=step[0] / _TIMES[unit], prefix="", suffix=_spaced(step[1]))
    if unit.startswith("prefix:"):
        return Scale(divisor=1.0, prefix=unit.removeprefix("prefix:"), suffix="")
    own = unit.removeprefix("suffix:").removeprefix("short:")
    divisor, name = _best(_SCALES.get(unit or "short", ((1.0, own),)), size)
    return Scale(divisor=divisor, prefix="", suffix=_spaced(name))


def value_text(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit, in the scale that fits it."""
    return scale_of(unit, value).text(value, decimals)


def _best(scales: tuple[tuple[float, str], ...], size: float) -> tuple[float, str]:
    """The largest scale in which the size is 1 or more; for 0 and tiny sizes the natural one."""
    if size == 0:
        return min(scales, key=lambda scale: abs(math.log(scale[0])))
    if scales is _TIME and _DAY <= size < _LEAST_WEEKS * _WEEK:
        return _DAY, "days"
    # Rounding must not show 1000 ms where 1 s is meant.
    fitting = [scale for scale in scales if size * (1 + 1e-9) >= scale[0]]
    return fitting[-1] if fitting else scales[0]


def _spaced(name: str) -> str:
    return f" {name}" if name else ""


def digits(number: float, decimals: int | None = None) -> str:
    """A number of 0 or more with four significant digits, or as many decimals as are set."""
    if decimals is not None:
        return f"{number:,.{min(max(decimals, 0), 12)}f}"
    if number == 0:
        return "0"
    places = max(0, _DIGITS - 1 - math.floor(math.log10(number)))
    if places > 2 * _DIGITS:
        return f"{number:.2e}"
    text = f"{number:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
