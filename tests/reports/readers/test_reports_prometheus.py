"""A job that only a Prometheus remembers: its report, and lockstep top from the same server."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep_catalogue import host, training
from lockstep_catalogue.metric import Metric
from lockstep_reports.analysis.steps import analyse
from lockstep_reports.document.published import step_reasons
from lockstep_reports.readers import ReadOptions
from lockstep_reports.readers.prometheus import read_url
from lockstep_reports.recording.recording import Bound, Window, cut_inside
from lockstep_reports.top.command import top

from ..report_command import report_json, run_report

pytestmark = [pytest.mark.server, pytest.mark.timeout(120)]

RANKS, LATE = 4, 2
SCRAPE, SCRAPES, LATE_FROM = 5, 360, 180
PRESSURE = 0.4  # of the time, on the late rank's node and while it is late
EVEN = {"data": 0.01, "forward": 0.04, "backward": 0.1, "sync": 0.04, "optimizer": 0.01}
BOUNDS = (*training.STEP_SECONDS.buckets, float("inf"))
PATIENCE_SECONDS = 40.0


def step_of(rank: int, scrape: int) -> dict[str, float]:
    """Seconds by phase; the late rank works 50 ms longer from the middle on, the others wait."""
    if scrape < LATE_FROM:
        return EVEN
    longer = "backward" if rank == LATE else "sync"
    return EVEN | {longer: EVEN[longer] + 0.05}


def pressure_of(rank: int, scrape: int) -> tuple[Metric, str, float]:
    """A sample of the node's waiting for processors; more while its rank is late."""
    pressed = SCRAPE * max(0, scrape - LATE_FROM) * (PRESSURE if rank == LATE else 0.0)
    labels = f'cluster="c",node="n{rank // 2}",resource="cpu",pressure="some"'
    return host.PRESSURE_SECONDS, labels, pressed + 0.01 * scrape


def exposition(begin: int) -> Iterator[str]:
    """Half an hour of samples, a family after the other, as promtool takes them."""
    series: dict[tuple[Metric, str], list[tuple[int, float]]] = {}
    for rank in range(RANKS):
        of_rank = f'cluster="c",job_id="job-a",rank="{rank}"'
        info = f'{of_rank},node="n{rank // 2}",world_size="{RANKS}",attempt="0",project="p"'
        steps, spent, shorter = 0.0, dict.fromkeys(EVEN, 0.0), dict.fromkeys(BOUNDS, 0.0)
        for scrape in range(SCRAPES):
            at, now = begin + scrape * SCRAPE, step_of(rank, scrape)
            done = SCRAPE / sum(now.values())
            steps += done
            shorter |= {
                bound: count + 2 * done * (sum(now.values()) < bound + 1e-9)
                for bound, count in shorter.items()
            }
            samples = [(training.STEPS, of_rank, steps), (training.RANK_INFO, info, 1.0)]
            samples += [(training.LAST_PROGRESS, of_rank, float(at))]
            for phase, seconds in now.items():
                spent[phase] += seconds * done
                samples.append((training.PHASE_SECONDS, f'{of_rank},phase="{phase}"', spent[phase]))
            if rank % 2 == 0:
                of_node = f'cluster="c",job_id="job-a",node="n{rank // 2}"'
                samples += [(training.STEP, of_node, float(int(steps)))]
                samples += [pressure_of(rank, scrape)]
                samples += [(training.TOKENS, of_node, steps * 512), (training.LOSS, of_node, 2.5)]
                samples += [
                    (training.STEP_SECONDS, f'{of_node},le="{bound:g}"', count)
                    for bound, count in shorter.items()
                ]
            for metric, labels, value in samples:
                series.setdefault((metric, labels), []).append((at, value))
    for metric in dict.fromkeys(metric for metric, _ in series):
        name = metric.name.removesuffix("_total")
        yield f"# TYPE {name} {metric.kind.value}"
        for (of, labels), points in series.items():
            if of is metric:
                sample = f"{metric.name}_bucket" if metric.buckets else metric.name
                yield from (f"{sample}{{{labels}}} {value:.9g} {at}" for at, value in points)
    yield "# EOF"


@pytest.fixture(scope="module", name="began")
def _began() -> int:
    return int(time.time()) - SCRAPES * SCRAPE - 5


@pytest.fixture(scope="module", name="url")
def _url(
    began: int, serve_prometheus: Callable[[Path], AbstractContextManager[str]]
) -> Iterator[str]:
    """A Prometheus that holds the blocks of that half hour."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "samples").write_text("\n".join(exposition(began)) + "\n")
        words = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples", "data"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=60)
        config = folder / "none.yml"
        config.write_text("global: {}\n")
        with serve_prometheus(config) as url:
            yield url


@pytest.fixture(scope="module", name="read")
def _read(url: str, began: int) -> dict[str, Any]:
    return report_json(url, "--from", began, "--to", began + SCRAPES * SCRAPE)


def test_the_late_rank_and_its_phase_are_told_from_series(read: dict[str, Any]) -> None:
    assert read["source"] == {"kind": "prometheus"}
    assert read["verdict"]["kind"] == "rank"
    assert (read["verdict"]["ranks"], read["verdict"]["phase"]) == ([LATE], "backward")
    assert (read["job_id"], read["world_size"], read["project"]) == ("job-a", RANKS, "p")
    assert {line["node"] for line in read["ranks"]} == {"n0", "n1"}


def test_steps_and_losses_are_those_of_the_steps_behind_the_series(read: dict[str, Any]) -> None:
    healthy, late = LATE_FROM * SCRAPE / 0.2, (SCRAPES - LATE_FROM) * SCRAPE / 0.25
    assert read["steps"]["count"] == pytest.approx(healthy + late, rel=0.03)
    episode = read["episodes"][0]
    assert episode["start_step"] == pytest.approx(healthy, rel=0.03)
    assert episode["late_seconds"] == pytest.approx(0.05, rel=0.02)
    assert read["lost_seconds"] == pytest.approx(0.05 * late, rel=0.06)
    parts = [value for name, value in read["goodput"].items() if name != "ratio"]
    assert sum(parts) == pytest.approx(RANKS * SCRAPES * SCRAPE, rel=0.03)
    assert read["goodput"]["unknown"] < 0.05 * sum(parts)


@pytest.mark.parametrize(
    ("until", "low", "high"), [(LATE_FROM * SCRAPE - 30, 0.16, 0.2), (SCRAPES * SCRAPE, 0.2, 0.25)]
)
def test_the_tail_is_told_from_the_histogram_as_exactly_as_its_buckets(
    url: str, began: int, until: int, low: float, high: float
) -> None:
    steps = report_json(url, "--from", began, "--to", began + until)["steps"]
    assert low < steps["p95_seconds"] <= high
    assert steps["p95_seconds"] > low + 0.8 * (high - low)


def test_a_window_inside_has_the_tail_of_its_own_steps(url: str, began: int) -> None:
    end = began + SCRAPES * SCRAPE
    recording = read_url(url, ReadOptions(window=bounds(began, end)))
    late = cut_inside(recording, bounds(began + LATE_FROM * SCRAPE + 60, end))
    middles = [
        part.steps.durations.quantile(0.5) for part in (recording, late) if part.steps.durations
    ]
    assert middles == [pytest.approx(0.196, abs=0.003), pytest.approx(0.225, abs=0.001)]


def test_without_the_histogram_the_tail_is_null_with_its_reason(url: str, began: int) -> None:
    recording = read_url(url, ReadOptions(window=bounds(began, began + SCRAPES * SCRAPE)))
    bare = replace(recording, steps=replace(recording.steps, durations=None))
    analysis = analyse(bare)
    assert analysis.summary.p95_seconds is None
    assert "no counts by duration" in (step_reasons(analysis)["steps.p95_seconds"] or "")


def bounds(first: float, last: float) -> Window:
    return Window(first=Bound(wall_seconds=first), last=Bound(wall_seconds=last))


def test_trouble_on_the_node_of_the_late_rank_stands_beside_the_verdict(
    read: dict[str, Any], began: int
) -> None:
    (sign,) = read["signs"]
    assert (sign["cause"], sign["node"], sign["unit"]) == ("cpu_pressure", "n1", "s/s")
    assert sign["value"] == pytest.approx(PRESSURE, rel=0.1)
    assert abs(sign["begin_time"] - (began + LATE_FROM * SCRAPE)) < 90
    assert "lockstep_host_pressure_seconds_total" in sign["source"]


def test_what_series_cannot_tell_is_null_with_its_reason(read: dict[str, Any]) -> None:
    assert read["alignment"]["residual_seconds"] is None
    assert read["what_if"] is None
    names = {"alignment.residual_seconds", "collectives", "what_if"}
    assert names <= read["unknown"].keys()
    assert "at a resolution of" in read["notes"][0]


def test_before_the_fault_nobody_was_slow(url: str, began: int) -> None:
    payload = report_json(
        url, "--from", began, "--to", began + LATE_FROM * SCRAPE - 30, "--job-id", "job-a"
    )
    assert payload["verdict"]["kind"] == "nobody"


def test_the_page_from_series_is_made(url: str, began: int, tmp_path: Path) -> None:
    result = run_report(url, "--from", began, "--html", tmp_path / "p.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "p.html").read_text()
    assert "Rank 2 was slow in backward" in page
    assert "arrival lag" not in page


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--from", "100"), "is asked by time"),
        (("--job-id", "other"), "knows nothing of job other"),
        (("--from", "now", "--to", "-1h"), "before it begins"),
        (("--from", "-8d", "--to", "-7d"), "knows nothing of any job"),
    ],
)
def test_what_a_server_cannot_answer_is_one_sentence_and_exit_2(
    url: str, arguments: tuple[str, ...], sentence: str
) -> None:
    result = run_report(url, *arguments, "--json", "-")
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_top_from_a_server_has_the_late_rank_on_top(url: str) -> None:
    result = CliRunner().invoke(top, [url, "--once"])
    assert result.exit_code == 0, result.output
    columns, first = result.output.splitlines()[1:3]
    late = dict(zip(columns.replace(", ms", "").split(), first.split(), strict=False))
    assert (late["rank"], late["node"], late["state"]) == (str(LATE), "n1", "training")
    assert float(late["lag"]) == pytest.approx(50, rel=0.05)
    assert float(late["waits"]) == pytest.approx(40, rel=0.05)


def test_top_of_a_job_that_a_server_does_not_know_is_exit_2(url: str) -> None:
    result = CliRunner().invoke(top, [url, "--once", "--job-id", "other"])
    assert result.exit_code == 2
    assert "knows of no such rank" in result.stderr


def test_nobody_at_the_address_is_exit_2() -> None:
    result = run_report("http://127.0.0.1:9", "--json", "-")
    assert result.exit_code == 2
    assert "cannot be queried" in result.stderr
