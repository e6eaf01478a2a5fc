"""Two failures at once, of two jobs in one cluster: neither hides the other."""

import random
import re
from collections.abc import Sequence

import msgspec

from lockstep_cli.gameday.rows import Row

_NODE = re.compile(r"\bnode-(\d)")


def draw_pairs(rows: Sequence[Row], count: int, seed: int) -> list[tuple[Row, Row]]:
    """So many pairs of different rows that have notices and share their servers, by chance."""
    able = [row for row in rows if row.job and row.expect.notices and not row.exclusive]
    chance = random.Random(f"pairs {seed}")
    pairs = []
    for number in range(count):
        first, second = chance.sample(able, 2)
        pairs.append((_move(first, number, "a"), _move(second, number, "b")))
    return pairs


def _move(row: Row, number: int, side: str) -> Row:
    """The row in the cluster of its pair, with nodes of names of their own."""
    text = _NODE.sub(rf"{side}-node-\1", msgspec.json.encode(row).decode())
    moved = msgspec.json.decode(text, type=Row)
    cluster = f"pair-{number}"
    return msgspec.structs.replace(moved, row=f"{cluster}-{side}-{row.row}", cluster=cluster)
