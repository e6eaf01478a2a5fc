"""Lines of kernel logs, as dmesg, journalctl, syslog, containers and consoles write them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lockstep_records.text.documents import read_toml
from lockstep_records.text.printable import strip_colours

_PART = re.compile("%([A-Z_]+)%")


def with_parts(text: str, parts: dict[str, str]) -> str:
    """An expression of a table, with its parts in the place of their names."""
    return _PART.sub(lambda match: with_parts(parts[match[1]], parts), text)


RECORD = re.compile(
    r"(?P<priority>\d{1,10}),(?P<sequence>\d{1,18}),(?P<micros>\d{1,18}),[^;]*;(?P<text>.*)"
)
_TABLE = read_toml(Path(__file__).with_suffix(".toml"))
_STAMP, _KERNEL = 1, 2
_TELLS = {"stamp": _STAMP, "kernel": _KERNEL}
_PREFIXES = tuple(
    (
        re.compile(with_parts(row["expression"], _TABLE["parts"])),
        sum(_TELLS[word] for word in row.get("tells", ())),
    )
    for row in _TABLE["prefixes"]
)
# Members of a line that is an object, of journalctl, a container's log or a collector.
_TEXTS = ("MESSAGE", "message", "log", "msg")
_TIMES = ("time", "timestamp", "@timestamp", "ts")
_SPEAKERS = ("_TRANSPORT", "SYSLOG_IDENTIFIER", "appname", "ident", "program")
_ISO_OFFSET = re.compile(r"([+-]\d\d)(\d\d)$")
_DAY_SECONDS = 86_400.0
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MAX_CHARACTERS = 1000
USER_PRIORITY = 8  # the kernel gives it, or a higher one, to whatever a process writes


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a log.

    Attributes:
        text: without time and origin.
        seconds: on the log's own clock, whose zero is arbitrary.
        wall_seconds: wall clock of the writing; of the reading for a log without wall-clock times.
    """

    text: str
    seconds: float
    wall_seconds: float


def parse_line(line: str, now_seconds: float) -> Message | None:
    """A line of a log as a message; None for one that a process wrote into the kernel's log."""
    return read_line(line, now_seconds)[0]


def read_line(
    line: str, now_seconds: float, before: Message | None = None
) -> tuple[Message | None, bool]:
    """A line of a log as a message, and whether its stamp is known.

    The line is a record of the kernel's ring, or one of dmesg, journalctl, syslog, the fabric
    manager, or a container's log of these. Without a time ``now_seconds`` is its wall clock; a
    stamp may tell how much later than ``before`` it came.
    """
    line = strip_colours(line)
    if line.startswith("{"):
        return _read_object(line, now_seconds, before)
    found, end, tells = _strip(line)
    is_known = bool(tells & _STAMP)
    is_foreign = (
        int(found.get("pri", 0)) >= USER_PRIORITY or found.get("facility", "kern") != "kern"
    )
    if is_foreign or int(found.get("priority", 0)) >= USER_PRIORITY:
        return None, True
    wall_seconds = _wall_seconds(found, now_seconds)
    if "later" in found and before is not None:
        wall_seconds = before.wall_seconds + float(found["later"])
    moment = now_seconds if wall_seconds is None else wall_seconds
    # Some lines of a log have both clocks, and some the wall's alone.
    seconds = moment if before is None else before.seconds + moment - before.wall_seconds
    seconds = float(found["seconds"]) if "seconds" in found else seconds
    seconds = int(found["micros"]) / 1e6 if "micros" in found else seconds
    return Message(truncate(line[end:]), seconds, moment), is_known


def is_kernel_line(line: str) -> bool:
    """Whether a line names the kernel as its speaker, or has a stamp as its ring has."""
    entry, text = _object_of(line)
    if text is not None:
        return any(entry.get(name) == "kernel" for name in _SPEAKERS) or is_kernel_line(text)
    return bool(_strip(strip_colours(line))[2] & _KERNEL)


def _object_of(line: str) -> tuple[dict[str, Any], str | None]:
    """A line of JSON and the text in it, which is None of any other line."""
    try:
        entry = json.loads(line) if line.startswith("{") else {}
        return entry, next(
            (entry[name] for name in _TEXTS if isinstance(entry.get(name), str)), None
        )
    except (ValueError, RecursionError):
        return {}, None


def _strip(line: str) -> tuple[dict[str, str], int, int]:
    """The named parts of what stands before a message, where that begins, and what it tells."""
    found: dict[str, str] = {}
    end = tells = 0
    for prefix, flags in _PREFIXES:
        if match := prefix.match(line, end):
            found |= {name: value for name, value in match.groupdict().items() if value}
            end, tells = match.end(), tells | flags
    return found, end, tells


def _read_object(
    line: str, now_seconds: float, before: Message | None
) -> tuple[Message | None, bool]:
    """A line of JSON whose message is a line of its own, or the text of a message alone."""
    entry, text = _object_of(line)
    if text is None:
        return Message(truncate(line), now_seconds, now_seconds), False
    if any(entry.get(name, "kernel") != "kernel" for name in _SPEAKERS):
        return None, True
    message, is_known = read_line(text.rstrip("\n"), now_seconds, before)
    times = [entry[name] for name in _TIMES if isinstance(entry.get(name), str)]
    moment = _iso_seconds(times[0]) if times else None
    if str(entry.get("__REALTIME_TIMESTAMP", "")).isdecimal():
        moment = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
    if message is None or moment is None:
        return message, is_known
    return Message(message.text, moment, moment), True


def _wall_seconds(found: Mapping[str, str], now_seconds: float) -> float | None:
    """The wall clock of a stamp's parts; None where they name no moment."""
    if "iso" in found:
        utc = "+00:00" if found.get("zone") in {"UTC", "GMT"} else ""
        return _iso_seconds(found["iso"] + utc)
    if "epoch" in found:
        return float(found["epoch"])
    try:
        hour, minute, second = (*map(int, found["clock"].split(":")), 0)[:3]
        month, day = _MONTHS.index(found["month"]) + 1, int(found["day"])
        stated = found.get("year") or found.get("year_last")
        this_year = datetime.fromtimestamp(now_seconds).year  # noqa: DTZ006  # logs have local time
        # Without a year it is the latest one that is not in the future.
        for year in (int(stated),) if stated else (this_year, this_year - 1):
            local = datetime(year, month, day, hour, minute, second)  # noqa: DTZ001  # as above
            if stated or local.timestamp() <= now_seconds + _DAY_SECONDS:
                return local.timestamp()
    except (KeyError, ValueError, TypeError, OverflowError, OSError):
        return None
    return None


def _iso_seconds(text: str) -> float | None:
    """Seconds of a stamp in ISO 8601, local without a zone; None for an impossible one."""
    # dmesg writes a comma before the fraction, journalctl no colon in the zone
    spelled = _ISO_OFFSET.sub(r"\1:\2", text.replace(",", "."))
    try:
        return datetime.fromisoformat(spelled).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def truncate(text: str) -> str:
    """The message itself: records of the ring go on with lines of KEY=value that are no part."""
    return text.partition("\n")[0][:_MAX_CHARACTERS]
