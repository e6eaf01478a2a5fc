"""Values with their unit, as Grafana writes them: 1.25 ms, 3.4 min, 12 GiB, 97.2 %."""

import math
from dataclasses import dataclass

_DAY, _WEEK = 86400.0, 604_800.0
_TIME = (
    (1e-9, "ns"), (1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"),
    (_DAY, "days"), (_WEEK, "weeks"), (31_557_600.0, "years"),
)  # fmt: skip
_COUNTS = ((1.0, ""), (1e3, "K"), (1e6, "Mil"), (1e9, "Bil"), (1e12, "Tri"))
_DIGITS = 4
_LEAST_WEEKS = 8  # below it, days are read more easily
_MINUS = "\N{MINUS SIGN}"

Steps = tuple[tuple[float, str], ...]


def _prefixed(unit: str, base: float, prefixes: str, first: int = 0) -> Steps:
    names = prefixes.split(",")
    return tuple((base ** (n + first), f"{prefix}{unit}") for n, prefix in enumerate(names))


def _decimal(unit: str) -> Steps:
    return _prefixed(unit, 1000.0, ",k,M,G,T,P,E")


def _small_too(unit: str) -> Steps:
    return _prefixed(unit, 1000.0, "n,µ,m,,k,M,G,T,P", first=-3)


_SCALES: dict[str, Steps] = {
    "none": ((1.0, ""),), "short": _COUNTS, "locale": ((1.0, ""),), "s": _TIME,
    "bytes": _prefixed("B", 1024.0, ",Ki,Mi,Gi,Ti,Pi,Ei"), "Bps": _decimal("B/s"),
    "percentunit": ((0.01, "%"),), "hertz": _decimal("Hz"), "watt": _small_too("W"),
    "joule": _small_too("J"), "celsius": ((1.0, "°C"),),
    "cps": tuple((factor, f"{prefix} c/s".strip()) for factor, prefix in _COUNTS),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How values of a size are written: divided by ``divisor``, before the suffix."""

    divisor: float
    suffix: str

    def text(self, value: float, decimals: int | None = None) -> str:
        """A value with its unit."""
        number = value / self.divisor
        written = digits(abs(number), decimals)
        sign = _MINUS if number < 0 and written.strip("0.") else ""
        return f"{sign}{written}{self.suffix}"


def scale_of(unit: str, magnitude: float) -> Scale:
    """The scale in which values of a magnitude are read most easily."""
    divisor, name = _best(_SCALES.get(unit, ((1.0, unit),)), abs(magnitude))
    return Scale(divisor=divisor, suffix=f" {name}" if name else "")


def value_text(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit, in the scale that fits it."""
    return scale_of(unit, value).text(value, decimals)


def _best(scales: Steps, size: float) -> tuple[float, str]:
    """The largest scale in which the size is 1 or more; for 0 and tiny sizes the natural one."""
    if size == 0:
        return min(scales, key=lambda scale: abs(math.log(scale[0])))
    if scales is _TIME and _DAY <= size < _LEAST_WEEKS * _WEEK:
        return _DAY, "days"
    # Rounding must not show 1000 ms where 1 s is meant.
    fitting = [scale for scale in scales if size * (1 + 1e-9) >= scale[0]]
    return fitting[-1] if fitting else scales[0]


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
