"""Prefixes of a line in a job's log: which rank printed it, on which node, and when."""

import calendar
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from lockstep_records.text.documents import read_toml
from lockstep_records.text.printable import strip_colours

_MOST_PREFIXES = 5
_NOON = 12
_PREFIXES = tuple(map(re.compile, read_toml(Path(__file__).with_suffix(".toml"))["prefixes"]))
# A rank inside the line, used where no prefix names one.
_INSIDE = re.compile(
    r"\[(?:PG[^\]]{0,80} )?Rank (?P<a>\d{1,6})\]"
    r"|\bGLOBAL_RANK: (?P<b>\d{1,6})\b"
    r"|[\"']rank[\"']: ?(?P<c>\d{1,6})\b"
    r"|^\[?Rank (?P<d>\d{1,6})\b"
)
_ISO = re.compile(
    r"(?<!\d)(20\d\d)[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
    r"(?: ?(AM|PM)\b)?\s?(Z|[+-]\d\d:?\d\d(?!\d))?"
)
# Each begins with one of few characters, which makes its search several times faster.
_GLOG = re.compile(r"[IWEF](?<![^\s\]\[].)(\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{3,9})")
_NAMED = re.compile(
    r"(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?<!\w...) {1,2}(\d{1,2})"
    r"(?: (20\d\d))? (\d\d):(\d\d):(\d\d)(?: (AM|PM))?(?: ([A-Z]{3,4}))?(?: (20\d\d))?"
)
# Abbreviations with one meaning only; CST, IST and BST have several.
_ZONE_HOURS = {"UTC": 0, "GMT": 0, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "JST": 9, "KST": 9,
               "EST": -5, "EDT": -4, "CDT": -5, "MDT": -6, "PST": -8, "PDT": -7}  # fmt: skip
# A time of which the line speaks, and at which it was not printed: a start, a plan, a file's name.
_MENTIONED = re.compile(
    r"(?i)(?:\b(?:since|scheduled|submitted|created|modified|expires?|until|deadline|due|from|between"
    r"|last|eligible)\b[\s:=]*(?:at|on|time|to \w+)?[\s:='\"(\[]*"
    r"|(?:finish|end|result|done|complete|elapsed|took|total).*\b(?:start\w*|beg[ia]n\w*)\b"
    r"[\s:=]*(?:at|on|time)?[\s:='\"(\[]*"
    r"|\w[^\s,]*,[^,]*,.*,\s*|[\w./-])$"
)
_EPOCH = re.compile(r"\"time_ms\": ?(\d{12,14})\b|^RUNANDTIME_(?:START|STOP) (\d{10})$")
# Printed by a script, a resource manager or a framework at the moment that it names.
_MARKER = re.compile(
    r"(?i)\b(?:CANCELLED|RUN|ENDING|STARTING|ENDED|FINISHED|EXIT\w*|STOP\w*|START\w*) AT\b"
    r"|datetime:|^\s*(?:\w{3},? )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
    r"|^RUNANDTIME_|^\s*20\d\d-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-][\d:]+)?\s*$"
)
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_SEARCHED_CHARACTERS = 260


@dataclass(frozen=True, slots=True)
class Origin:
    """The process that printed a line; its task is a rank under srun, a node under torchrun."""

    rank: int | None = None
    task: int | None = None
    local_rank: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time in a line: seconds since 1970, taken for UTC unless the line names a zone.

    Attributes:
        is_marker: whether a script or a manager printed it at that very moment.
        pair_seconds: the same moment by the line's other clock; None where the line has one only.
    """

    seconds: float
    zoned: bool
    is_marker: bool = False
    pair_seconds: float | None = None


def clean(raw: bytes) -> str:
    """A line as text: invalid UTF-8 replaced, colours and cursor movements removed."""
    return strip_colours(raw.decode("utf-8", "replace").rstrip("\r\n"))


def split_prefix(text: str) -> tuple[Origin, str]:
    """The origin of a line, and the line without its prefixes."""
    labels: dict[str, str] = {}
    end = 0
    for _ in range(_MOST_PREFIXES):
        for prefix in _PREFIXES:
            if match := prefix.match(text, end):
                labels |= {name: value for name, value in match.groupdict().items() if value}
                end = match.end()
                break
        else:
            break
    body = text[end:]
    rank = labels.get("rank")
    may_name = rank is None and ("ank" in body or "GLOBAL_RANK" in body)
    if may_name and (inside := _INSIDE.search(body, 0, _SEARCHED_CHARACTERS)):
        rank = next(value for value in inside.groups() if value is not None)
    return (
        Origin(
            rank=None if rank is None else int(rank),
            task=int(labels["task"]) if "task" in labels else None,
            local_rank=int(labels["local"]) if "local" in labels else None,
            node=labels.get("node"),
        ),
        body,
    )


def find_stamp(text: str, year: int) -> Stamp | None:
    """The time at which a line was printed; None where it has none of its own."""
    head = text[:_SEARCHED_CHARACTERS]
    try:
        stamp = _find_written(head, year)
    except ValueError:
        stamp = None
    epoch = _EPOCH.search(head) if "time_ms" in head or head[:1] == "R" else None
    if epoch is None:
        if stamp is None:
            return None
        return replace(stamp, is_marker=_MARKER.search(head) is not None)
    milliseconds, seconds = epoch.groups()
    moment = float(seconds or 0) or int(milliseconds) / 1e3
    # A launcher may prefix its own time: then one line holds the same moment by two clocks.
    local = stamp.seconds if stamp is not None and not stamp.zoned else None
    return Stamp(moment, zoned=True, is_marker=seconds is not None, pair_seconds=local)


def _find_written(head: str, year: int) -> Stamp | None:
    for expression in (_ISO, _GLOG, _NAMED):
        match = expression.search(head)
        if match is None or _MENTIONED.search(head[: match.start()].rstrip("\"'")):
            continue
        if expression is _ISO:
            return _iso(match)
        if expression is _GLOG:  # glog writes no year
            month, day, *clock, fraction = match.groups()
            return _stamp(year, month, day, clock, fraction)
        return _named(match, year)
    return None


def _named(match: re.Match[str], year: int) -> Stamp:
    name, day, early, hour, minute, second, half, zone, late = match.groups()
    clock = (_hour_of_day(hour, half), minute, second)
    stamp = _stamp(int(early or late or year), _MONTHS[name], day, clock, None)
    ahead = _ZONE_HOURS.get(zone or "")
    return stamp if ahead is None else Stamp(stamp.seconds - ahead * 3600, zoned=True)


def _hour_of_day(hour: str, half: str | None) -> str:
    return hour if not half else str(int(hour) % _NOON + (_NOON if half == "PM" else 0))


def _iso(match: re.Match[str]) -> Stamp:
    year, month, day, hour, minute, second, fraction, half, zone = match.groups()
    clock = (_hour_of_day(hour, half), minute, second)
    stamp = _stamp(int(year), month, day, clock, fraction)
    if not zone:
        return stamp
    if zone == "Z":
        return Stamp(stamp.seconds, zoned=True)
    digits = zone[1:].replace(":", "")
    ahead = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    offset = timezone(ahead if zone[0] == "+" else -ahead).utcoffset(None).total_seconds()
    return Stamp(stamp.seconds - offset, zoned=True)


def _stamp(
    year: int,
    month: str | int,
    day: str,
    clock: "tuple[str, ...] | list[str]",
    fraction: str | None,
) -> Stamp:
    hour, minute, second = (int(part) for part in clock)
    # A leap second is 60, which datetime refuses.
    moment = datetime(year, int(month), int(day), hour, minute, min(second, 59), tzinfo=UTC)
    return Stamp(moment.timestamp() + float(f"0.{fraction or 0}"), zoned=False)
