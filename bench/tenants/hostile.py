"""Hostile inputs by a seed: bytes of pages and side files, JSON, and objects that are not files."""

import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep_records.page.layout import IDENTITY, PERIODIC, PERIODIC_OFFSETS, SLOT, SLOT_OFFSETS
from lockstep_records.page.section import Section

_SECTIONS: tuple[tuple[Section, int], ...] = (
    (IDENTITY, 0),
    *((SLOT, at) for at in SLOT_OFFSETS),
    *((PERIODIC, at) for at in PERIODIC_OFFSETS),
)
_WORDS = (
    b"\0" * 8,
    b"\xff" * 8,
    struct.pack("<q", -(2**63)),
    struct.pack("<q", 2**63 - 1),
    *(struct.pack("<d", float(word)) for word in ("nan", "inf", "-inf", "1.7e308", "5e-324", "-0")),
    struct.pack("<ii", -1, -1),
    struct.pack("<ii", 2**31 - 1, -(2**31)),
    b"\x1b[2J\n\"'}",
)
# JSON by the letter, put in place of a marker.
_PLAIN = (
    *(
        '"\\ud800"',
        '"\\udfff\\ud800"',
        '"\\u0000"',
        '"\\u001b[2J"',
        '"\u202e"',
        "1e300",
        "0.0",
        "-0",
    ),
    *("9007199254740991", "-1", '""', '" "', "null", "true", "[]", "{}", "[[[]]]", "1e-300"),
    *('"Xid\u00b2"', '"\u0663"', '"' + "x" * 5000 + '"', "[" * 20 + "]" * 20, "1795420552.5"),
)
# What readers of JSON disagree about.
_WILD = (
    *("1e999", "-1e999", "NaN", "Infinity", "9" * 400, "-" + "9" * 5000, "1e-400"),
    *("9007199254740993", "18446744073709551616", '{"a":' * 500 + "1" + "}" * 500),
    *("[" * 200 + "]" * 200, "[" * 3000 + "]" * 3000),
)
# What is not JSON; one of them spoils a whole document.
_BROKEN = ("00", "1.", "+1", "tru", "", "{", '"')
_BROKEN_RATIO = 0.0005
_MARK = '"@raw@"'


def value(chance: random.Random, depth: int = 0) -> Any:
    """Any JSON value; a marker replaces text that is not plain JSON."""
    kind = chance.randrange(8)
    if kind < 4:  # noqa: PLR2004  # half of them
        return "@raw@"
    if kind == 4:  # noqa: PLR2004  # one number for each kind
        return chance.choice((0, 1, -1, 2**53, 2**63, 1e308, -1.5, True, None))
    if kind == 5 or depth > 3:  # noqa: PLR2004  # as above
        return chance.choice(("", " ", "a", "x" * 300, "../..", "victim", "<b>", "\n", "%s{0}"))
    if kind == 6:  # noqa: PLR2004  # as above
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {f"k{n}": value(chance, depth + 1) for n in range(chance.randrange(4))}


def text_of(chance: random.Random, document: Any, *, wild: bool = True) -> str:
    """The document as JSON text, each marker replaced; all of it JSON by the letter if not wild."""
    parts = json.dumps(document).split(_MARK)
    texts = _PLAIN + _WILD if wild else _PLAIN
    return parts[0] + "".join(_text(chance, texts, wild) + part for part in parts[1:])


def _text(chance: random.Random, texts: tuple[str, ...], wild: bool) -> str:
    return chance.choice(_BROKEN if wild and chance.random() < _BROKEN_RATIO else texts)


def spoil(chance: random.Random, document: Any) -> Any:
    """Replaces some values of a good document; the names stay mostly."""
    if isinstance(document, dict):
        spoiled = {
            name: value(chance) if chance.random() < 0.15 else spoil(chance, each)  # noqa: PLR2004  # a share or a figure of this line
            for name, each in document.items()
            if chance.random() > 0.03  # noqa: PLR2004  # few are left out
        }
        return spoiled | ({"new": value(chance)} if chance.random() < 0.1 else {})  # noqa: PLR2004  # a share or a figure of this line
    if isinstance(document, list):
        return [spoil(chance, each) for each in document] * chance.choice((1, 1, 1, 0, 50))
    return document


def page(chance: random.Random, good: bytes) -> bytes:
    """A page with hostile words, mostly under valid checksums."""
    data = bytearray(good)
    for section, at in chance.sample(_SECTIONS, chance.randint(1, len(_SECTIONS))):
        part = data[at : at + section.size]
        end = section.offsets["checksum"]
        # The head says what the file is; a page that is none is refused at once.
        begin = 24 if section is IDENTITY and chance.random() < 0.8 else 0  # noqa: PLR2004  # a share or a figure of this line
        for _ in range(chance.choice((1, 1, 2, 5, 40))):
            word = chance.choice((*_WORDS, chance.randbytes(8)))
            start = chance.randrange(begin, end - 8) & ~chance.choice((0, 3, 7, 7, 7))
            part[start : start + 8] = word
        if chance.random() < 0.8:  # noqa: PLR2004  # most are sealed
            sealed = zlib.crc32(part[:end]).to_bytes(section.size - end, "little")
            part[end : section.size] = sealed
        data[at : at + section.size] = part[: section.size]
    return damaged(chance, bytes(data)) if chance.random() < 0.1 else bytes(data)  # noqa: PLR2004  # a share or a figure of this line


def damaged(chance: random.Random, good: bytes) -> bytes:
    """Bits flipped, cut off, swapped or repeated."""
    data = bytearray(good)
    how = chance.randrange(4)
    if how == 0:
        return bytes(data[: chance.randrange(len(data) + 1)])
    if how == 1 and len(data) > 16:  # noqa: PLR2004  # two parts of it
        first, second = sorted(chance.sample(range(len(data)), 2))
        return bytes(data[second:] + data[first:second] + data[:first])
    if how == 2:  # noqa: PLR2004  # one number for each kind
        return bytes(data * chance.choice((0, 2, 3)))
    for _ in range(chance.choice((1, 8, 200))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 34)


_NO_FILES: tuple[Callable[[Path], None], ...] = (
    _fifo,
    _sparse,
    Path.mkdir,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/proc/self/mem"),
    lambda path: path.symlink_to(path.name),
    lambda path: path.symlink_to("/"),
    lambda path: path.symlink_to("../../victim/0/rank-00000.page"),
)


def no_file(chance: random.Random, path: Path) -> None:
    """Creates something that is not a regular file, or not of a sane size."""
    chance.choice(_NO_FILES)(path)
