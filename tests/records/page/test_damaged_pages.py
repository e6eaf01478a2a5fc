"""Pages of another version, cut, torn or hostile: a PageError names the field, never a crash."""

import os
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sample_pages import written_page

from lockstep_catalogue import METRICS
from lockstep_catalogue.metric import Metric
from lockstep_records.page.layout import (
    EXTRAS,
    HEARTBEAT,
    HEARTBEAT_OFFSET,
    IDENTITY,
    MAGIC,
    PERIODIC,
    PERIODIC_OFFSETS,
    RING_OFFSET,
    ROW,
    SLOT,
    SLOT_OFFSETS,
    VERSION,
    Field,
    Section,
    page_bytes,
)
from lockstep_records.page.reader import PageError, read_page, read_rows

REASONS = {"version", "truncated", "identity", "checksum", "io"}
ROWS = 16


@pytest.fixture
def page(memory: Path) -> Path:
    return written_page(memory, steps=20, rows=ROWS)


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def write_checksum(path: Path, section: Section, start: int) -> None:
    """Makes the checksum of a section fit what stands there now, as a hostile writer would."""
    data = path.read_bytes()[start : start + section.offsets["checksum"]]
    width = section.size - section.offsets["checksum"]
    patch(path, start + len(data), zlib.crc32(data).to_bytes(width, "little"))


def set_identity(path: Path, name: str, value: bytes) -> None:
    patch(path, IDENTITY.offsets[name], value)
    write_checksum(path, IDENTITY, 0)


def int32_bytes(number: int) -> bytes:
    return (number % 2**32).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("name", "value", "reason", "sentence"),
    [
        ("magic", b"NOTAPAGE", "identity", "magic is b'NOTAPAGE'"),
        ("version", int32_bytes(0), "version", f"format version 0, .* {VERSION}$"),
        ("version", int32_bytes(9), "version", f"format version 9, .* {VERSION}$"),
        ("row_count", int32_bytes(0), "identity", "row_count is 0"),
        ("row_count", int32_bytes(2**32 - 1), "identity", "row_count is 4294967295"),
        ("row_count", int32_bytes(ROWS + 1), "truncated", "17 rows need"),
        ("row_count", int32_bytes(ROWS - 1), "truncated", "15 rows need"),
        ("row_bytes", int32_bytes(64), "identity", "row_bytes is 64"),
        ("slot_bytes", int32_bytes(0), "identity", "slot_bytes is 0"),
        ("periodic_bytes", int32_bytes(8), "identity", "periodic_bytes is 8"),
        ("rank", int32_bytes(8), "identity", "rank 8 is outside its world_size 8"),
        ("rank", int32_bytes(-1), "identity", "rank -1"),
        ("attempt", int32_bytes(-1), "identity", "attempt -1 is below 0"),
        ("world_size", int32_bytes(-5), "identity", "world_size -5"),
        ("job_id", b"\xff\xfe", "identity", "job_id is not UTF-8"),
        ("node", b"\x1b[2J", "identity", "node holds control characters"),
        ("cluster", b"a\0b", "identity", "cluster holds control characters"),
    ],
)
def test_a_wrong_field_of_the_identity_is_named(
    page: Path, name: str, value: bytes, reason: str, sentence: str
) -> None:
    set_identity(page, name, value)
    with pytest.raises(PageError, match=sentence) as caught:
        read_page(page)
    assert caught.value.reason == reason
    assert str(page) in str(caught.value)


@pytest.mark.parametrize(
    ("at", "data", "reason", "sentence"),
    [
        ([IDENTITY.offsets["pid"]], int32_bytes(1), "checksum", "checksum of the identity"),
        (SLOT_OFFSETS, b"\xa5\x5a", "checksum", "neither slot"),
        ([HEARTBEAT_OFFSET], b"\x0f", "identity", "phase code 15"),
        ([page_bytes(ROWS)], b"\0", "truncated", "16 rows need"),
    ],
)
def test_what_was_changed_without_its_checksum_is_refused(
    page: Path, at: Sequence[int], data: bytes, reason: str, sentence: str
) -> None:
    for each in at:
        patch(page, each, data)
    with pytest.raises(PageError, match=sentence) as caught:
        read_page(page)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "length",
    [
        0,
        1,
        IDENTITY.size - 1,
        IDENTITY.size,
        HEARTBEAT_OFFSET + 4,
        SLOT_OFFSETS[0],
        SLOT_OFFSETS[0] + SLOT.size - 1,
        SLOT_OFFSETS[1] + SLOT.size,
        RING_OFFSET,
        RING_OFFSET + ROW.size,
        page_bytes(ROWS) - 1,
    ],
)
def test_a_truncated_page_is_refused_with_its_length(page: Path, length: int) -> None:
    os.truncate(page, length)
    with pytest.raises(PageError, match=f"has {length} bytes") as caught:
        read_page(page)
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize(
    ("happens", "reason", "sentence"),
    [
        (lambda page: os.truncate(page, RING_OFFSET + 5), "truncated", "has shrunk"),
        (Path.unlink, "io", "No such file"),
    ],
)
def test_a_page_that_shrinks_or_vanishes_under_its_reader_is_refused(
    page: Path, happens: Callable[[Path], None], reason: str, sentence: str
) -> None:
    read = read_page(page)
    happens(page)
    with pytest.raises(PageError, match=sentence) as caught:
        read_rows(read)
    assert caught.value.reason == reason


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("at", [0, SLOT.size // 2, SLOT.size - 8])
def test_damage_to_one_slot_leaves_the_other(page: Path, slot: int, at: int) -> None:
    before = read_page(page).state
    patch(page, SLOT_OFFSETS[slot] + at, b"\xa5\x5a")
    after = read_page(page).state
    hit_the_newest = before["sequence"] & 1 == slot
    assert after["sequence"] == before["sequence"] - hit_the_newest
    assert after["steps"] == before["steps"] - hit_the_newest


def test_a_torn_last_row_is_left_out_and_the_others_stay(page: Path) -> None:
    last = 19 % ROWS
    patch(page, RING_OFFSET + last * ROW.size + ROW.size // 2, bytes(ROW.size // 2))
    assert [row["number"] for row in read_rows(read_page(page))] == list(range(4, 19))


def test_a_row_at_the_wrong_index_is_left_out(page: Path) -> None:
    data = page.read_bytes()
    first = data[RING_OFFSET : RING_OFFSET + ROW.size]
    patch(page, RING_OFFSET + ROW.size, first)
    numbers = [row["number"] for row in read_rows(read_page(page))]
    assert 17 not in numbers
    assert len(numbers) == ROWS - 1


def test_a_sealed_slot_that_claims_endless_steps_costs_nothing(page: Path) -> None:
    for start in SLOT_OFFSETS:
        patch(page, start + SLOT.offsets["steps"], b"\xff" * 8)
        write_checksum(page, SLOT, start)
    read = read_page(page)
    assert read.state["steps"] == 2**64 - 1
    assert read_rows(read) == []


def mutate(path: Path, original: bytes, chance: random.Random) -> None:
    """Garbage at random places, half of the time checksummed again; sometimes cut as well."""
    path.write_bytes(original)
    for _ in range(chance.randint(1, 4)):
        edges = (0, HEARTBEAT_OFFSET, *SLOT_OFFSETS, RING_OFFSET)
        at = chance.choice(edges) + chance.randint(0, SLOT.size)
        patch(path, at, chance.randbytes(chance.randint(1, 16)))
    if chance.random() < 0.5:
        write_checksum(path, IDENTITY, 0)
        for start in SLOT_OFFSETS:
            write_checksum(path, SLOT, start)
    if chance.random() < 0.1:
        os.truncate(path, chance.randint(0, len(original)))


def test_no_garbage_does_more_than_a_page_error(page: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201  # pytest shows it when the test fails
    chance, original = random.Random(seed), page.read_bytes()
    refused: list[PageError] = []
    for _ in range(500):
        mutate(page, original, chance)
        try:
            rows = read_rows(read_page(page))
        except PageError as error:
            refused.append(error)
        else:
            assert len(rows) <= ROWS
    assert {error.reason for error in refused} <= REASONS
    assert all(str(page) in str(error) for error in refused)
    assert 0 < len(refused) < 500


SECTIONS = (IDENTITY, HEARTBEAT, SLOT, PERIODIC, ROW)

# Of version 1: fields of each section, without what may be added, and a checksum of them in order.
FROZEN = {
    "identity": (31, "25a783fa"),
    "heartbeat": (1, "438e66dd"),
    "slot": (23, "daa63560"),
    "periodic": (63, "ee39c4be"),
    "row": (15, "f2999bb0"),
}


def checksum_of(section: Section, num_fields: int) -> str:
    fields = section.fields[:num_fields]
    lines = [f"{section.offsets[f.name]} {f.format} {f.name} {f.optional}" for f in fields]
    return f"{zlib.crc32(' '.join(lines).encode()):08x}"


def test_what_a_version_has_once_had_stays() -> None:
    assert (MAGIC, VERSION) == (b"LKSTPAGE", 1)
    frozen = {s.name: (FROZEN[s.name][0], checksum_of(s, FROZEN[s.name][0])) for s in SECTIONS}
    assert frozen == FROZEN, "a field has moved: VERSION has to rise"
    sizes = IDENTITY.size, SLOT.size, PERIODIC.size, ROW.size
    offsets = HEARTBEAT_OFFSET, *SLOT_OFFSETS, *PERIODIC_OFFSETS, RING_OFFSET
    assert sizes == (740, 656, 2048, 256)
    assert offsets == (4096, 8192, 12288, 16384, 20480, 24576)
    extras = "sequence_min sequence_max sequence_squares host_bound_seconds run_queue_seconds"
    assert [*EXTRAS][:7] == [*extras.split(), "core_seconds", "stopped_seconds"]


def test_an_optional_field_at_the_end_moves_no_other_and_changes_no_size() -> None:
    older = Field("older", "Q", "", optional=True)
    present, checksum = Field("present", "Q", ""), Field("checksum", "Q", "")
    before = Section("before", "", present, older, checksum, size=64)
    newer = Field("newer", "d", "", optional=True)
    after = Section("after", "", present, older, newer, checksum, size=64)
    assert before.size == after.size == 64
    assert {name: after.offsets[name] for name in ("older", "checksum")} == {
        "older": before.offsets["older"],
        "checksum": 56,
    }
    assert after.presence == {"older": 1, "newer": 2}


def test_a_field_that_is_not_aligned_cannot_be_declared() -> None:
    with pytest.raises(AssertionError, match=r"crooked\.b is not aligned"):
        Section("crooked", "", Field("a", "I", ""), Field("b", "Q", ""))


@pytest.mark.parametrize(
    "metric", [m for m in METRICS if m.page_field], ids=lambda metric: metric.page_field
)
def test_a_total_that_the_agent_sums_is_a_field_whose_items_are_label_values(
    metric: Metric,
) -> None:
    (field,) = [field for field in PERIODIC.fields if field.name == metric.page_field]
    item_labels = [label for label in metric.labels if label.values]
    assert [label.values for label in item_labels] == ([field.items] if field.items else [])
