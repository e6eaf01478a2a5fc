"""Format v5 of the rank page, byte by byte: what is added needs a new version."""

import struct

import pytest
from writers.page_format import render

from lockstep_catalogue import METRICS
from lockstep_catalogue.metric import Metric
from lockstep_records.page.layout import (
    HEARTBEAT,
    HEARTBEAT_OFFSET,
    IDENTITY,
    MAGIC,
    PERIODIC,
    PERIODIC_OFFSETS,
    PHASES,
    READABLE_VERSIONS,
    RING_OFFSET,
    ROW,
    SLOT,
    SLOT_OFFSETS,
    VERSION,
    page_bytes,
)
from lockstep_records.page.section import Field, Section

SECTIONS = (IDENTITY, HEARTBEAT, SLOT, PERIODIC, ROW)

FROZEN_VERSION = 5
# Offset, struct format and name of every field of that version.
GOLDEN = {
    "identity": (
        (0, "8s", "magic"),
        (8, "I", "version"),
        (12, "I", "row_count"),
        (16, "I", "row_bytes"),
        (20, "I", "slot_bytes"),
        (24, "i", "rank"),
        (28, "i", "local_rank"),
        (32, "i", "world_size"),
        (36, "i", "attempt"),
        (40, "i", "pid"),
        (44, "i", "dp"),
        (48, "i", "fsdp"),
        (52, "i", "pp"),
        (56, "i", "tp"),
        (60, "i", "cp"),
        (64, "i", "ep"),
        (68, "I", "periodic_bytes"),
        (72, "q", "start_monotonic_ns"),
        (80, "q", "start_wall_ns"),
        (88, "128s", "job_id"),
        (216, "64s", "cluster"),
        (280, "64s", "project"),
        (344, "128s", "node"),
        (472, "64s", "gpu_uuid"),
        (536, "32s", "torch_version"),
        (568, "32s", "nccl_version"),
        (600, "I", "locked"),
        (604, "64s", "queue"),
        (668, "64s", "job_class"),
        (732, "I", "launch_key"),
        (736, "I", "checksum"),
    ),
    "heartbeat": ((0, "Q", "mark"),),
    "slot": (
        (0, "Q", "sequence"),
        (8, "Q", "present"),
        (16, "q", "step"),
        (24, "q", "written_ns"),
        (32, "d", "loss"),
        (40, "d", "gradient_norm"),
        (48, "d", "learning_rate"),
        (56, "q", "checkpoint_step"),
        (64, "q", "checkpoint_wall_ns"),
        (72, "Q", "steps"),
        (80, "Q", "samples"),
        (88, "Q", "tokens"),
        (96, "Q", "nonfinite_steps"),
        (104, "Q", "internal_errors"),
        (112, "12d", "phase_seconds"),
        (208, "2Q", "checkpoints"),
        (224, "6Q", "collectives"),
        (272, "6Q", "collective_bytes"),
        (320, "6d", "collective_seconds"),
        (368, "d", "step_seconds_sum"),
        (376, "33Q", "step_buckets"),
        (640, "Q", "settled_steps"),
        (648, "Q", "checksum"),
    ),
    "periodic": (
        (0, "Q", "sequence"),
        (8, "Q", "present"),
        (16, "q", "written_ns"),
        (24, "d", "process_seconds"),
        (32, "q", "step_before"),
        (40, "d", "flops_per_token"),
        (48, "d", "peak_flops"),
        (56, "3Q", "nonfinite"),
        (80, "2Q", "anomalies"),
        (96, "2Q", "anomaly_now"),
        (112, "Q", "device_allocated_bytes"),
        (120, "Q", "device_reserved_bytes"),
        (128, "Q", "device_peak_bytes"),
        (136, "Q", "resident_bytes"),
        (144, "Q", "resident_peak_bytes"),
        (152, "Q", "allocator_retries"),
        (160, "Q", "out_of_memory"),
        (168, "Q", "requested_bytes"),
        (176, "Q", "collections"),
        (184, "d", "collection_seconds"),
        (192, "Q", "measured_steps"),
        (200, "d", "measured_seconds"),
        (208, "d", "checkpoint_blocking_seconds"),
        (216, "d", "checkpoint_persisting_seconds"),
        (224, "Q", "checkpoint_bytes"),
        (232, "Q", "checkpoints_verified"),
        (240, "q", "write_step"),
        (248, "d", "write_seconds"),
        (256, "3Q", "restores"),
        (280, "d", "restore_seconds"),
        (288, "Q", "passed_over"),
        (296, "q", "restore_requested"),
        (304, "q", "restored_step"),
        (312, "8d", "rework_seconds"),
        (376, "8d", "hang_seconds"),
        (440, "Q", "fingerprints"),
        (448, "8q", "fingerprint_step"),
        (512, "8Q", "fingerprint_parameters"),
        (576, "8Q", "fingerprint_gradients"),
        (640, "5Q", "troubles"),
        (680, "6Q", "bus_bytes"),
        (728, "8d", "host_bound_seconds"),
        (792, "Q", "device_steps"),
        (800, "Q", "device_dropped"),
        (808, "Q", "late_losses"),
        (816, "8q", "late_loss_step"),
        (880, "8d", "late_loss"),
        (944, "31Q", "part_errors"),
        (1192, "d", "hang_timeout_seconds"),
        (1200, "d", "pause_timeout_seconds"),
        (1208, "Q", "checkpoints_invalid"),
        (1216, "10Q", "checkpoint_blocking_buckets"),
        (1296, "10Q", "checkpoint_persisting_buckets"),
        (1376, "Q", "launch_bound_steps"),
        (1384, "Q", "device_stride"),
        (1392, "d", "run_queue_seconds"),
        (1400, "Q", "checksum"),
    ),
    "row": (
        (0, "Q", "number"),
        (8, "q", "step"),
        (16, "q", "start_ns"),
        (24, "q", "first_arrival_ns"),
        (32, "q", "last_arrival_ns"),
        (40, "f", "seconds"),
        (44, "f", "data_seconds"),
        (48, "f", "forward_seconds"),
        (52, "f", "backward_seconds"),
        (56, "f", "sync_seconds"),
        (60, "f", "optimizer_seconds"),
        (64, "f", "checkpoint_seconds"),
        (68, "f", "eval_seconds"),
        (72, "f", "other_seconds"),
        (76, "f", "loss"),
        (80, "f", "gradient_norm"),
        (84, "I", "tokens"),
        (88, "I", "samples"),
        (92, "I", "present"),
        (96, "I", "flags"),
        (100, "I", "sequence_min"),
        (104, "I", "sequence_max"),
        (108, "f", "sequence_squares"),
        (112, "f", "host_bound_seconds"),
        (116, "f", "run_queue_seconds"),
        (120, "4s", "reserved"),
        (124, "I", "checksum"),
    ),
}
GOLDEN_PRESENCE = {
    "slot": ("step loss gradient_norm learning_rate checkpoint_step checkpoint_wall_ns"),
    "periodic": (
        "process_seconds step_before flops_per_token peak_flops device_allocated_bytes "
        "device_reserved_bytes device_peak_bytes resident_bytes resident_peak_bytes "
        "requested_bytes write_step write_seconds restore_requested restored_step "
        "hang_timeout_seconds pause_timeout_seconds device_stride run_queue_seconds"
    ),
    "row": (
        "first_arrival_ns last_arrival_ns loss gradient_norm sequence_min sequence_max "
        "sequence_squares host_bound_seconds run_queue_seconds"
    ),
}
GOLDEN_PHASES = (
    "init data forward backward sync optimizer checkpoint eval other restore done failed"
)


def field_formats(section: Section) -> tuple[tuple[int, str, str], ...]:
    return tuple(
        (section.offsets[field.name], field.format, field.name) for field in section.fields
    )


def test_version_five_is_what_it_always_was() -> None:
    assert MAGIC == b"LKSTPAGE"
    frozen = {section.name: section.at(FROZEN_VERSION) for section in SECTIONS}
    assert {name: field_formats(section) for name, section in frozen.items()} == GOLDEN
    assert " ".join(PHASES) == GOLDEN_PHASES
    assert {name: " ".join(frozen[name].presence) for name in GOLDEN_PRESENCE} == GOLDEN_PRESENCE
    assert (HEARTBEAT_OFFSET, *SLOT_OFFSETS) == (4096, 8192, 12288)
    assert (*PERIODIC_OFFSETS, RING_OFFSET) == (16384, 20480, 24576)
    assert page_bytes(65_536) == 8_413_184


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_a_later_version_moves_no_field_but_the_checksum(section: Section) -> None:
    for name, at in section.at(FROZEN_VERSION).offsets.items():
        assert name in {"checksum", "reserved"} or section.offsets[name] == at


def test_the_version_is_that_of_the_newest_field_and_all_versions_have_rows_of_one_size() -> None:
    assert max(field.since for section in SECTIONS for field in section.fields) == VERSION
    assert {ROW.at(version).size for version in READABLE_VERSIONS} == {128}


def test_a_later_field_may_take_a_part_of_an_earlier_one_and_the_last_bit_of_presence() -> None:
    wide = Field("wide", "I", "", earlier=(4, "Q"))
    half = Field("half", "I", "", optional=True, since=5)
    others = Field("older", "Q", "", optional=True), Field("checksum", "Q", "")
    section = Section("mixed", "", wide, half, *others)
    assert field_formats(section)[:2] == ((0, "I", "wide"), (4, "I", "half"))
    assert section.presence == {"older": 1, "half": 2}
    assert field_formats(section.at(4))[:2] == ((0, "Q", "wide"), (8, "Q", "older"))
    assert section.at(4).presence == {"older": 1}


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_field_is_aligned_to_its_width(section: Section) -> None:
    for field in section.fields:
        width = 1 if field.code.endswith("s") else struct.calcsize("<" + field.code)
        assert section.offsets[field.name] % width == 0, field.name


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_fields_leave_no_gap_and_do_not_overlap(section: Section) -> None:
    at = 0
    for field in section.fields:
        assert section.offsets[field.name] == at
        at += struct.calcsize("<" + field.format)
    assert section.size == at


def test_the_checksum_is_the_last_field_of_every_section_that_has_one() -> None:
    for section in (IDENTITY, SLOT, PERIODIC, ROW):
        assert section.fields[-1].name == "checksum"


def test_a_field_that_is_not_aligned_cannot_be_declared() -> None:
    with pytest.raises(AssertionError, match=r"crooked\.b is not aligned"):
        Section("crooked", "", Field("a", "I", ""), Field("b", "Q", ""))


def test_parts_of_a_page_do_not_overlap() -> None:
    starts = (0, HEARTBEAT_OFFSET, *SLOT_OFFSETS, *PERIODIC_OFFSETS, RING_OFFSET)
    sizes = (IDENTITY.size, HEARTBEAT.size, SLOT.size, SLOT.size, PERIODIC.size, PERIODIC.size)
    for start, size, following in zip(starts, sizes, starts[1:], strict=False):
        assert start + size <= following


def test_a_store_into_the_ring_stays_on_one_page_of_memory() -> None:
    assert 4096 % ROW.size == 0


def test_the_page_of_the_format_lists_every_field_and_its_offset() -> None:
    page = render()
    for section in SECTIONS:
        for field in section.fields:
            assert f"| `{field.name}` | {section.offsets[field.name]} | " in page


@pytest.mark.parametrize(
    "metric", [m for m in METRICS if m.page_field], ids=lambda metric: metric.page_field
)
def test_a_total_that_the_agent_sums_is_a_field_whose_items_are_the_label_s_values(
    metric: Metric,
) -> None:
    (field,) = [field for field in PERIODIC.fields if field.name == metric.page_field]
    item_labels = [label for label in metric.labels if label.values]
    assert [label.values for label in item_labels] == ([field.items] if field.items else [])
