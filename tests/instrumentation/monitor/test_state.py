"""Spikes, divergence, memory, pauses, rework and our own cost, as they are in the page."""

import gc
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import lockstep
from lockstep.monitor.anomalies import WINDOW, LossJudge
from lockstep.monitor.memory import Memory
from lockstep_outcomes.progress.goodput import goodput_ns
from lockstep_records.page.layout import ROW_FLAGS
from lockstep_records.page.reader import read_rows

from ..rank_page import ENVIRONMENT, page_of


def closed(root: Path, monitor: lockstep.Monitor) -> dict[str, Any]:
    monitor.close()
    return page_of(root).periodic


def flags(row: dict[str, Any]) -> set[str]:
    return {name for bit, name in enumerate(ROW_FLAGS) if row["flags"] >> bit & 1}


def feed(judge: LossJudge, losses: list[float]) -> tuple[list[int], list[int]]:
    """Indices of losses at which spikes and divergences begin."""
    spikes, divergences = [], []
    for index, loss in enumerate(losses):
        judge.losses.append(loss)
        if not judge.floor < loss <= judge.bound and judge.is_anomalous(loss):
            spikes.append(index)
        if index % WINDOW == WINDOW - 1 and judge.update_bounds():
            divergences.append(index)
    return spikes, divergences


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_falls_with_noise_is_neither_a_spike_nor_a_divergence(seed: int) -> None:
    draw = random.Random(seed)
    losses = [8 * math.exp(-n / 2000) + 2 + draw.gauss(0, 0.05) for n in range(10_000)]
    assert feed(LossJudge(), losses) == ([], [])


def test_a_spike_counts_once_while_it_lasts_and_again_after_it() -> None:
    draw = random.Random(1)
    losses = [2 + draw.gauss(0, 0.02) for _ in range(512)]
    for index in (200, 201, 202, 400):
        losses[index] = 4.0
    judge = LossJudge()
    assert feed(judge, losses) == ([200, 400], [])
    assert not judge.spiking


def test_a_loss_that_turns_round_diverges_once_and_a_new_level_is_accepted_later() -> None:
    draw = random.Random(2)
    rising = [2 + max(0, n - 640) / 500 + draw.gauss(0, 0.02) for n in range(1280)]
    judge = LossJudge()
    _, divergences = feed(judge, rising)
    assert len(divergences) == 1
    assert 640 <= divergences[0] < 640 + 192
    assert judge.diverging
    feed(judge, [rising[-1] + draw.gauss(0, 0.02) for _ in range(64 * 20)])
    assert not judge.diverging
    assert len(judge.losses) == WINDOW


def test_non_finite_values_are_counted_by_kind_and_flag_the_row(
    root: Path, monitor: lockstep.Monitor
) -> None:
    monitor.step(loss=math.nan, gradient_norm=1.0)
    monitor.step(loss=1.0, gradient_norm=math.inf)
    monitor.step(loss=1.0, gradient_norm=1.0)
    rows = read_rows(page_of(root))
    periodic = closed(root, monitor)
    assert periodic["nonfinite"] == {"loss": 1, "gradient_norm": 1, "parameters": 0}
    assert [flags(row) & {"nonfinite"} for row in rows] == [{"nonfinite"}, {"nonfinite"}, set()]


def test_a_loss_that_is_infinite_from_the_first_step_on_is_counted(
    root: Path, monitor: lockstep.Monitor
) -> None:
    for _ in range(3):
        monitor.step(loss=math.inf)
    rows = read_rows(page_of(root))
    assert closed(root, monitor)["nonfinite"]["loss"] == 3
    assert all("nonfinite" in flags(row) for row in rows)


def test_a_divergence_flags_all_its_rows_and_few_of_them_are_judged(
    root: Path, monitor: lockstep.Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[float] = []
    is_anomalous = LossJudge.is_anomalous

    def note(judge: LossJudge, loss: float) -> bool:
        judged.append(loss)
        return is_anomalous(judge, loss)

    monkeypatch.setattr(LossJudge, "is_anomalous", note)
    for number in range(600):
        monitor.step(loss=(2 if number < 300 else 2.4) + number % 5 / 100)
    diverged = [row["number"] for row in read_rows(page_of(root)) if "divergence" in flags(row)]
    assert diverged == list(range(diverged[0], 600))
    assert 300 < diverged[0] < 430
    assert len(judged) < 100
    assert closed(root, monitor)["anomalies"]["divergence"] == 1


def test_a_spike_flags_its_row_and_counts(root: Path, monitor: lockstep.Monitor) -> None:
    for number in range(130):
        monitor.step(loss=9.0 if number == 100 else 2 + number % 5 / 100)
    rows = read_rows(page_of(root))
    assert [row["number"] for row in rows if "loss_spike" in flags(row)] == [100]
    assert closed(root, monitor)["anomalies"] == {"spike": 1, "divergence": 0}


def test_lengths_of_sequences_give_figures_and_tokens(
    root: Path, monitor: lockstep.Monitor
) -> None:
    monitor.step(sequence_lengths=[3, 10, 7])
    monitor.step(tokens=5, samples=1)
    first, second = read_rows(page_of(root))
    assert (
        first["extras"]["sequence_min"],
        first["extras"]["sequence_max"],
        first["extras"]["sequence_squares"],
    ) == (3, 10, 158)
    assert (first["tokens"], first["samples"]) == (20, 3)
    assert second["extras"]["sequence_min"] is second["extras"]["sequence_squares"] is None
    assert second["tokens"] == 5


def test_our_own_cost_is_measured_in_one_step_of_sixty_seven_and_flagged(
    root: Path, monitor: lockstep.Monitor
) -> None:
    begin = time.monotonic()
    for _ in range(200):
        for phase in ("data", "forward", "backward"):
            monitor.enter_phase(phase)
        monitor.step(loss=1.0)
    passed = time.monotonic() - begin
    rows = read_rows(page_of(root))
    periodic = closed(root, monitor)
    assert [row["number"] for row in rows if "measured" in flags(row)] == [67, 134]
    assert periodic["measured_steps"] == 2
    assert 1e-6 < periodic["measured_seconds"] < passed


def test_runs_of_the_garbage_collector_and_memory_are_in_the_page(
    root: Path, monitor: lockstep.Monitor
) -> None:
    for _ in range(3):
        gc.collect(0)  # a full one takes a second in a process with torch
    hooks = len(gc.callbacks)
    periodic = closed(root, monitor)
    assert periodic["collections"] >= 3
    assert periodic["collection_seconds"] > 0
    assert len(gc.callbacks) == hooks - 1
    assert 1 << 20 < periodic["resident_bytes"] <= periodic["resident_peak_bytes"]
    assert periodic["device_allocated_bytes"] is None


def test_statistics_of_the_gpus_allocator_are_taken_over_and_its_counters_add_up(
    root: Path, monitor: lockstep.Monitor
) -> None:
    memory = Memory(monitor._periodic.slots)  # type: ignore[attr-defined]  # there is no GPU
    stats = {"allocated_bytes.all.current": 5, "reserved_bytes.all.current": 8}
    memory.read_device({**stats, "num_alloc_retries": 2, "num_ooms": 1})
    memory.read_device({**stats, "num_alloc_retries": 3, "num_ooms": 1})
    periodic = closed(root, monitor)
    assert (periodic["device_allocated_bytes"], periodic["device_reserved_bytes"]) == (5, 8)
    assert (periodic["allocator_retries"], periodic["out_of_memory"]) == (3, 1)


def test_memory_that_runs_out_is_counted_once_with_the_bytes_asked(
    root: Path, monitor: lockstep.Monitor
) -> None:
    with pytest.raises(RuntimeError), monitor.phase("eval"), monitor.phase("forward"):
        torch.empty(10**15)
    monitor.step()
    [row] = read_rows(page_of(root))
    periodic = closed(root, monitor)
    assert "out_of_memory" in flags(row)
    assert (periodic["out_of_memory"], periodic["requested_bytes"]) == (1, 4 * 10**15)


def test_numbers_for_mfu_are_in_the_page_or_refused(root: Path, monitor: lockstep.Monitor) -> None:
    monitor.describe(flops_per_token=6e9, peak_flops=1e15)
    with pytest.raises(ValueError, match="peak_flops 0 must be a positive number"):
        monitor.describe(peak_flops=0)
    periodic = page_of(root).periodic
    assert (periodic["flops_per_token"], periodic["peak_flops"]) == (6e9, 1e15)


@pytest.mark.parametrize(("timeout", "hangs"), [("200ms", {"hang"}), ("2m", set()), ("0s", set())])
def test_a_step_hangs_by_the_time_out_of_its_user(
    root: Path, timeout: str, hangs: set[str]
) -> None:
    environment = {**ENVIRONMENT, "LOCKSTEP_HANG_TIMEOUT": timeout}
    monitor = lockstep.attach(root=root, environment=environment, rows=64)
    for number in range(5):
        monitor.enter_phase("forward")
        time.sleep(0.4 if number == 4 else 0.001)
        monitor.step(step=number)
    monitor.close()
    page = page_of(root)
    assert [flags(row) & {"hang"} for row in read_rows(page)] == [set()] * 4 + [hangs]
    assert page.periodic["hang_seconds"]["forward"] >= (0.4 if hangs else 0)


def test_steps_that_an_earlier_attempt_did_are_rework_and_states_sum_up(root: Path) -> None:
    for attempt in range(2):
        environment = {**ENVIRONMENT, "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        monitor = lockstep.attach(root=root, environment=environment, rows=64)
        for number in range(5 - attempt, 10):
            monitor.enter_phase("forward")
            time.sleep(0.002)
            monitor.step(step=number + 3 * attempt)
        monitor.close()
    page = page_of(root, 1)
    assert page.periodic["step_before"] == 9
    assert [("rework" in flags(row)) for row in read_rows(page)] == [True] * 3 + [False] * 3
    spent = goodput_ns(page)
    assert spent["rework"] >= 3 * 2_000_000
    assert spent["productive"] >= 3 * 2_000_000
    until = page.progress_ns + 1000
    wall = (
        until - page.identity["start_monotonic_ns"] + round(page.periodic["process_seconds"] * 1e9)
    )
    assert sum(goodput_ns(page, until).values()) == wall
