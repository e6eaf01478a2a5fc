"""Lists of hosts as Slurm writes them, such as ``n[1-3,07],login``."""

import re

_PARTS = re.compile(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)*")
_RANGES = re.compile(r"\[([^\]]*)\]")
_MAX_DIGITS = 128


def split_hosts(hosts: str) -> list[str]:
    """The parts of a list: names, and names with ranges."""
    return _PARTS.findall(hosts)


def names_host(hosts: str, node: str) -> bool:
    """Whether a list names a node."""
    return any(_matches(_RANGES.split(part), node) for part in split_hosts(hosts))


def _matches(pieces: list[str], node: str) -> bool:
    """Whether a node is among the names of one part: fixed texts and ranges take turns."""
    pattern = "".join(
        f"([0-9]{{1,{_MAX_DIGITS}}})" if index % 2 else re.escape(piece)
        for index, piece in enumerate(pieces)
    )
    match = re.fullmatch(pattern, node)
    return match is not None and all(
        any(_is_between(number, *span.partition("-")[::2]) for span in ranges.split(","))
        for number, ranges in zip(match.groups(), pieces[1::2], strict=True)
    )


def _is_between(number: str, first: str, last: str) -> bool:
    return int(first or 0) <= int(number) <= int(last or first or 0) and (len(number) >= len(first))
