"""The format of the rank page: what is added moves nothing, what moves needs a new version."""

import zlib

import pytest

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
)

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
def test_a_total_that_the_agent_sums_is_a_field_whose_items_are_the_label_s_values(
    metric: Metric,
) -> None:
    (field,) = [field for field in PERIODIC.fields if field.name == metric.page_field]
    item_labels = [label for label in metric.labels if label.values]
    assert [label.values for label in item_labels] == ([field.items] if field.items else [])
