"""Whether this node's GPUs are fit: what the driver says of them, and what they do under load.

Each figure stands beside what it is compared with: the GPU's own limits, its links, and what the
maker publishes of the model.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep_agent.doctor.checkup import COLOUR, STATUS, measure_node, parse_figures, write_json
from lockstep_agent.sources.nvml.device import Driver, Gpu, GpuLostError, NoDriverError
from lockstep_catalogue.incidents import DEGRADED, FAILED, OK
from lockstep_records.files.node_figure import (
    Figure,
    format_rate,
    pcie_rate,
    published_of,
    published_rate,
)
from lockstep_records.text.printable import printable

T = TypeVar("T")
_CALL_SECONDS = 10.0
_SAMPLE_SECONDS = 1.0
_BUSY_PERCENT = 90
_MEASURE_SECONDS = 240.0  # beside the load: loading torch, and the other probes of eight GPUs
_OLDEST_DRIVER = (
    525  # the first that reports rows, throttle reasons and links as they are read here
)
# Shares of published peaks that a fit GPU reaches: an H100 did 0.67 and 0.88 (docs/evidence).
_LEAST_SHARES = {"gemm": 0.5, "memory": 0.75, "host_to_device": 0.5, "device_to_host": 0.5}
_SM_CLOCK, _GPU_SENSOR = 1, 0  # NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
_UNCORRECTED, _SINCE_BOOT = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
_HELD_BACK = {0x8: "slowdown", 0x40: "heat", 0x80: "power brake"}  # nvmlClocksEventReason*
_QUESTIONS = (
    *(
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetUtilizationRates",
    ),
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetEccMode", "nvmlDeviceGetRemappedRows"),
    *("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEnergyConsumption"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One row of the table.

    Attributes:
        measured: with its unit.
        compared: what it is compared with; empty where with nothing.
        verdict: ok, degraded or failed.
    """

    gpu: str
    name: str
    measured: str
    compared: str = ""
    verdict: str = OK


def call_in_time(call: Callable[[], T], seconds: float) -> T | None:
    """The result of a call of the driver; None where it does not return in time."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except (NoDriverError, GpuLostError) as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    return results[0] if results else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """The work that GPUs are given.

    Attributes:
        minutes: duration of the product; None for that of the other probes.
        on_used: whether GPUs that other processes use are given it too.
        seconds: duration of each probe.
    """

    minutes: float | None
    on_used: bool
    seconds: float


def check_gpus(library: Path | None, load: Load, output: str | None) -> int:
    """Prints the table of all GPUs, or writes JSON; returns the exit status.

    Args:
        library: the NVML library; None for the system's.
        load: what the GPUs do meanwhile.
        output: file for the JSON, ``-`` for standard output; None for a table.

    Raises:
        click.ClickException: no driver answers.
    """
    try:
        driver = call_in_time(lambda: Driver(library), _CALL_SECONDS)
    except NoDriverError as error:
        raise click.ClickException(
            f"{error}; install or load it, or run this on a node of GPUs"
        ) from error
    if driver is None:
        return _show([_hangs("all")], [], output)
    checks = list(_driver_checks(driver))
    idle: list[Gpu] = []
    for gpu in driver.gpus:
        rows = _rows_in_time(gpu)
        checks += rows
        users = [row for row in rows if row.name == "other processes"]
        if users and not load.on_used:
            left_out = "left out: other processes use it"
            checks.append(_check(gpu, "load", left_out, "--load measures it beside them"))
        elif all(row.verdict != FAILED for row in rows):
            idle.append(gpu)
    figures = _measure(idle, load, checks) if idle else []
    return _show(checks, figures, output)


def _rows_in_time(gpu: Gpu) -> list[Check]:
    try:
        rows = call_in_time(lambda: list(_gpu_checks(gpu)), _CALL_SECONDS)
    except GpuLostError as error:
        return [_check(gpu, "driver", str(error), "an answer", FAILED)]
    return [_hangs(_title(gpu))] if rows is None else rows


def _hangs(gpu: str) -> Check:
    return Check(
        gpu=gpu,
        name="driver",
        measured=f"a call has not returned in {_CALL_SECONDS:g} s: drain the node",
        compared="an answer",
        verdict=FAILED,
    )


def _title(gpu: Gpu) -> str:
    return f"{gpu.index}: {gpu.model or 'GPU'}"


def _check(gpu: Gpu, name: str, measured: str, compared: str = "", verdict: str = OK) -> Check:
    return Check(gpu=_title(gpu), name=name, measured=measured, compared=compared, verdict=verdict)


def _driver_checks(driver: Driver) -> Iterator[Check]:
    major = (driver.version or "").partition(".")[0]
    is_old = major.isdecimal() and int(major) < _OLDEST_DRIVER
    words = f"{driver.version or 'unknown'}, CUDA {driver.cuda or 'unknown'}"
    old = f"older than {_OLDEST_DRIVER}: rows, clocks and links may be missing; update it"
    yield Check(
        gpu="all",
        name="driver",
        measured=words,
        compared=old if is_old else f"{_OLDEST_DRIVER} or newer",
        verdict=DEGRADED if is_old else OK,
    )
    if not driver.gpus:
        yield Check(gpu="all", name="GPUs", measured="0", compared="1 or more", verdict=FAILED)


def _gpu_checks(gpu: Gpu) -> Iterator[Check]:
    answered = sum(gpu.query(question) is not None for question in _QUESTIONS)
    verdict = OK if answered > len(_QUESTIONS) // 2 else DEGRADED
    yield _check(gpu, "NVML fields", f"{answered} answer", f"{len(_QUESTIONS)} asked", verdict)
    yield from _state_checks(gpu)
    yield from _link_checks(gpu)
    pids = _pids(gpu)
    if pids:
        named = ", ".join(map(str, pids[:4]))
        yield _check(gpu, "other processes", f"{len(pids)} (pid {named})", "none", OK)


def _pids(gpu: Gpu) -> list[int]:
    processes = gpu.query("nvmlDeviceGetComputeRunningProcesses_v3") or ()
    return [process.pid for process in processes]


def _state_checks(gpu: Gpu) -> Iterator[Check]:
    ask = gpu.query
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    default = ask("nvmlDeviceGetPowerManagementDefaultLimit")
    if limit is not None and default is not None:
        capped = DEGRADED if limit < default else OK
        words = f"{(power or 0) / 1e3:.0f} W, limit {limit / 1e3:.0f} W"
        yield _check(gpu, "power", words, f"{default / 1e3:.0f} W by default", capped)
    clock, most = (ask(f"nvmlDeviceGet{kind}ClockInfo", _SM_CLOCK) for kind in ("", "Max"))
    if clock is not None and most is not None:
        yield _check(gpu, "SM clock now", f"{clock} MHz", f"{most} MHz at most")
    errors = ask("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_BOOT)
    if errors is not None:
        bad = DEGRADED if errors else OK
        yield _check(gpu, "uncorrected ECC errors since boot", f"{errors}", "0", bad)
    rows = ask("nvmlDeviceGetRemappedRows")
    if rows is not None:
        corrected, uncorrected, pending, failed = rows
        verdict = FAILED if failed else DEGRADED if pending else OK
        words = f"{corrected + uncorrected}" + ", one waits for a reset" * bool(pending)
        yield _check(
            gpu, "remapped rows", words + ", no spare left" * bool(failed), "none pending", verdict
        )
    temperature = ask("nvmlDeviceGetTemperature", _GPU_SENSOR)
    if temperature is not None:
        yield _check(gpu, "temperature", f"{temperature} °C")


def _link_checks(gpu: Gpu) -> Iterator[Check]:
    ask = gpu.query
    now = [ask(f"nvmlDeviceGetCurrPcieLink{kind}") for kind in ("Generation", "Width")]
    most = [ask(f"nvmlDeviceGetMaxPcieLink{kind}") for kind in ("Generation", "Width")]
    if None not in {*now, *most}:
        # At rest a link may run at a lower generation; it never loses lanes.
        verdict = DEGRADED if now[1] < most[1] else OK
        yield _check(
            gpu, "PCIe link", f"gen {now[0]} x{now[1]}", f"gen {most[0]} x{most[1]}", verdict
        )
    published = published_of(gpu.model or "")
    states = [ask("nvmlDeviceGetNvLinkState", link) for link in range(18)]
    num_up = sum(state == 1 for state in states)
    if published is not None and published.num_links and any(state is not None for state in states):
        # A GPU alone in a virtual machine has none; one that has some has all of them.
        verdict = DEGRADED if 0 < num_up < published.num_links else OK
        yield _check(
            gpu, "NVLinks up", f"{num_up}", f"{published.num_links}, {published.source}", verdict
        )


class _UnderLoad:
    """Reads clock, heat and reasons once a second while the GPUs work."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus, self._stop = gpus, threading.Event()
        self.samples: dict[int, list[tuple[Any, Any, int]]] = {gpu.index: [] for gpu in gpus}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_CALL_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            for gpu in self._gpus:
                try:
                    use = gpu.query("nvmlDeviceGetUtilizationRates")
                    if use is None or use.gpu < _BUSY_PERCENT:
                        continue
                    clock = gpu.query("nvmlDeviceGetClockInfo", _SM_CLOCK)
                    heat = gpu.query("nvmlDeviceGetTemperature", _GPU_SENSOR)
                    reasons = gpu.query("nvmlDeviceGetCurrentClocksEventReasons") or 0
                except GpuLostError:
                    continue
                self.samples[gpu.index].append((clock, heat, reasons))

    def checks(self) -> Iterator[Check]:
        """What was seen of each GPU that was busy."""
        for gpu in self._gpus:
            clocks = [clock for clock, _, _ in self.samples[gpu.index] if clock is not None]
            heats = [heat for _, heat, _ in self.samples[gpu.index] if heat is not None]
            most = gpu.query("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)
            if clocks:
                words = f"{min(clocks)} to {max(clocks)} MHz"
                yield _check(gpu, "SM clock under load", words, f"{most} MHz at most")
            if heats:
                yield _check(gpu, "temperature under load", f"{max(heats)} °C")
            held = {
                name
                for bit, name in _HELD_BACK.items()
                for *_, r in self.samples[gpu.index]
                if r & bit
            }
            if held:
                yield _check(
                    gpu, "clocks held back", ", ".join(sorted(held)), "by nothing", DEGRADED
                )


def _measure(gpus: Sequence[Gpu], load: Load, checks: list[Check]) -> list[Figure]:
    """The figures under load; ``checks`` takes what the driver said meanwhile."""
    load_seconds = 60.0 * (load.minutes or 0.0)
    arguments = [text for gpu in gpus for text in ("--gpu", str(gpu.index))]
    if load_seconds:
        arguments += ["--load", f"{load_seconds:g}s"]
    limit = _MEASURE_SECONDS + len(gpus) * (load_seconds + 6 * load.seconds)
    with _UnderLoad(gpus) as watch:
        try:
            answer = measure_node(load.seconds, *arguments, timeout_seconds=limit)
        except click.UsageError as error:
            verdict = FAILED if "did not end" in error.message else DEGRADED
            checks.append(Check(gpu="all", name="load", measured=error.message, verdict=verdict))
            return []
    checks += watch.checks()
    if "skipped" in answer:
        checks.append(Check(gpu="all", name="load", measured=answer["skipped"], verdict=DEGRADED))
    figures = parse_figures(answer)
    links = {gpu.index: _link_rate(gpu) for gpu in gpus}
    checks += [_figure_check(figure, links) for figure in figures]
    return figures


def _link_rate(gpu: Gpu) -> float | None:
    generation, width = (
        gpu.query(f"nvmlDeviceGetMaxPcieLink{kind}") for kind in ("Generation", "Width")
    )
    return None if generation is None or width is None else pcie_rate(generation, width)


def _figure_check(figure: Figure, links: Mapping[int, float | None]) -> Check:
    peak = published_rate(figure)
    source = "published peak"
    if figure.probe in {"host_to_device", "device_to_host"} and figure.index is not None:
        peak, source = links.get(figure.index), "its PCIe link"
    least = _LEAST_SHARES.get(figure.probe, 0.0)
    is_slow = peak is not None and figure.value < least * peak
    compared = "nothing published"
    if peak is not None:
        compared = f"{format_rate(peak, figure.unit)}, {source}; {figure.value / peak:.0%}"
    names = {"gemm": "bf16 product", "memory": "memory, read and write"}
    return Check(
        gpu=figure.device if figure.index is None else f"{figure.index}: {figure.device}",
        name=names.get(figure.probe, figure.probe.replace("_", " ")),
        measured=format_rate(figure.value, figure.unit),
        compared=compared,
        verdict=DEGRADED if is_slow else OK,
    )


def _show(checks: Sequence[Check], figures: Sequence[Figure], output: str | None) -> int:
    verdict = max((check.verdict for check in checks), key=lambda each: STATUS[each], default=OK)
    if output is None:
        table = Table("GPU", "what", "measured", "compared with", "", title=f"GPUs: {verdict}")
        for check in checks:
            cells = (check.gpu, check.name, check.measured, check.compared)
            verdict_words = "" if check.verdict == OK else check.verdict
            table.add_row(
                *(Text(printable(cell)) for cell in cells),
                Text(verdict_words, COLOUR[check.verdict]),
            )
        Console().print(table)
        return STATUS[verdict]
    document = {
        "verdict": verdict,
        "checks": [*map(asdict, checks)],
        "figures": [*map(asdict, figures)],
    }
    write_json(document, output)
    return STATUS[verdict]
