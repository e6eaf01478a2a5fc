"""Collectives that ranks have launched, by the dumps of their Flight Recorders."""

import json
from typing import Any

from lockstep_outcomes.progress.missing import Launched
from lockstep_outcomes.progress.rank_progress import is_count
from lockstep_records.text.printable import printable

_MAX_NAME = 64


def launched_by_dump(data: bytes) -> dict[str, Launched]:
    """Collectives of each group by a rank's dump as JSON; empty where it holds none or is none.

    Groups go by their names, which all ranks share; numbers of groups are each rank's own.
    """
    try:
        entries = json.loads(data)["entries"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    found: dict[str, dict[int, tuple[str, bool]]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict):
            continue
        group, number = _group_of(entry), _number_of(entry)
        if group and number is not None:
            # On gloo the state of a completed collective stays "scheduled".
            is_open = entry.get("state") != "completed" and not entry.get("retired")
            found.setdefault(group, {})[number] = (_operation_of(entry), is_open)
    return {group: _launched(by_number) for group, by_number in found.items()}


def _launched(by_number: dict[int, tuple[str, bool]]) -> Launched:
    last = max(by_number)
    oldest = min((number for number, (_, is_open) in by_number.items() if is_open), default=None)
    return Launched(
        last, by_number[last][0], None if oldest is None else (oldest, by_number[oldest][0])
    )


def _group_of(entry: dict[str, Any]) -> str:
    group = entry.get("process_group")
    return printable(str(group[0]))[:_MAX_NAME] if isinstance(group, list) and group else ""


def _number_of(entry: dict[str, Any]) -> int | None:
    """The number of a collective in its group; None of sends and receives, which pairs count."""
    number = entry.get("collective_seq_id")
    return number if is_count(number) and number and not entry.get("is_p2p") else None


def _operation_of(entry: dict[str, Any]) -> str:
    return printable(str(entry.get("profiling_name", "")).rpartition(":")[2])[:_MAX_NAME]
