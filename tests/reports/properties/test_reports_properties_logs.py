"""Recorded logs of real runs tell the same however they were kept: the properties of their kind.

Other hosts, another day, another zone, other output in between, files cut short, packed, split
into parts, written by a clock thirty milliseconds off, printed by ranks in another order.
"""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep_reports.command import report

from ..matrices import matrix
from ..report_command import report_json

FIXTURES = Path(__file__).parents[2] / "fixtures"
LOGS = sorted(path for folder in FIXTURES.glob("mlperf-*") for path in folder.glob("*.gz"))
EVERY_LOG = pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name[:24])
TIMES = re.compile(r'("time_ms": ?)(\d{12,14})')
NOISE = (
    "wandb: Syncing run quiet-forest-12",
    "  warnings.warn(msg)",
    "gpu-12:25146:25854 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    "\ufffd\x1b[1mloading\x1b[0m shards 100%|##########|",
    "",
)
_PLAIN: dict[Path, dict[str, Any]] = {}


def plain(path: Path) -> dict[str, Any]:
    if path not in _PLAIN:
        _PLAIN[path] = report_json(path)
    return _PLAIN[path]


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode("utf-8", "surrogateescape")


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


def verdict(payload: dict[str, Any]) -> tuple[Any, ...]:
    of = payload["verdict"]
    return payload["outcome"], of["kind"], of["ranks"], of["cause"], payload["failure_class"]


def spans(payload: dict[str, Any]) -> list[float | None]:
    names = ("startup_seconds", "run_seconds", "wall_seconds", "seconds_after_last_progress")
    return [payload[name] for name in names]


def same(payload: dict[str, Any], path: Path, within: float = 1e-6) -> None:
    true = plain(path)
    assert verdict(payload) == verdict(true)
    assert payload["steps"] == true["steps"]
    for span, other in zip(spans(payload), spans(true), strict=True):
        assert span == (other if other is None else pytest.approx(other, abs=within))


@EVERY_LOG
@pytest.mark.parametrize("seed", matrix(range(2), 1))
def test_other_output_in_between(tmp_path: Path, path: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = text_of(path).split("\n")
    mixed = [part for line in lines for part in (*draw.sample(NOISE, draw.randint(0, 1)), line)]
    same(report_json(written(tmp_path / "a.log", "\n".join(mixed))), path)


@EVERY_LOG
def test_hosts_of_other_names(tmp_path: Path, path: Path) -> None:
    text = text_of(path)
    names = set(re.findall(r"^(\S+?):\d+:\d+ \[\d\]", text, re.MULTILINE))
    names |= set(re.findall(r"(?:srun: error: |node[s ]+on )([a-z][\w.-]*\d)", text))
    for at, name in enumerate(sorted(names, key=len, reverse=True)):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", f"rack{at}-gpu{at}", text)
    same(report_json(written(tmp_path / "elsewhere.out", text)), path)


@EVERY_LOG
@pytest.mark.parametrize("skew", matrix([-0.03, 0.03], 1))
def test_a_clock_thirty_milliseconds_off_in_some_of_the_lines(
    tmp_path: Path, path: Path, skew: float
) -> None:
    draw = random.Random(7)

    def moved(match: re.Match[str]) -> str:
        off = round(skew * 1e3) if draw.random() < 0.5 else 0
        return f"{match[1]}{int(match[2]) + off}"

    payload = report_json(written(tmp_path / "skewed.log", TIMES.sub(moved, text_of(path))))
    assert verdict(payload) == verdict(plain(path))
    assert payload["steps"]["count"] == plain(path)["steps"]["count"]
    for span, other in zip(spans(payload), spans(plain(path)), strict=True):
        assert span == (other if other is None else pytest.approx(other, abs=0.061))


@EVERY_LOG
def test_another_day(tmp_path: Path, path: Path) -> None:
    """Only for logs all of whose times are of MLPerf's own kind; the others keep their dates."""
    text = text_of(path)
    if re.search(r"20\d\d-\d\d-\d\d[ T]\d\d:|^RUNANDTIME|STARTING|[IWE]\d{4} \d\d:", text):
        text = re.sub(r"(?<!\d)(20\d\d)(?=-\d\d-\d\d[ T]\d\d:)", r"\1", text)
        same(report_json(written(tmp_path / "same.log", text)), path)
        return
    day = 86_400_000
    later = TIMES.sub(lambda m: f"{m[1]}{int(m[2]) + 41 * day}", text)
    same(report_json(written(tmp_path / "later.log", later)), path)


@EVERY_LOG
@pytest.mark.parametrize("packing", ["plain", "crlf", "twice"])
def test_other_packing_and_line_ends(tmp_path: Path, path: Path, packing: str) -> None:
    text = text_of(path)
    if packing == "crlf":
        same(report_json(written(tmp_path / "a.log", text.replace("\n", "\r\n"))), path)
    elif packing == "plain":
        same(report_json(written(tmp_path / "a", text)), path)
    else:
        data = text.encode("utf-8", "surrogateescape")
        half = data.index(b"\n", len(data) // 2) + 1
        (tmp_path / "a.gz").write_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]))
        same(report_json(tmp_path / "a.gz"), path)


@EVERY_LOG
@pytest.mark.parametrize("share", matrix([0.4, 0.95, 0.1, 0.7], 2))
def test_a_log_that_breaks_off_names_no_rank_and_promises_nothing(
    tmp_path: Path, path: Path, share: float
) -> None:
    text = text_of(path)
    shortened = written(tmp_path / "cut.log", text[: int(share * len(text))])
    result = CliRunner().invoke(report, [str(shortened), "--json", "-"])
    if result.exit_code == 2:  # it breaks off before the first line that says anything
        assert "is of a known kind" in result.output
        return
    payload, true = json.loads(result.stdout), plain(path)
    assert payload["verdict"]["ranks"] == []
    assert payload["outcome"] in {true["outcome"], "unknown", "failed"}
    if true["outcome"] == "succeeded":
        assert payload["outcome"] != "failed"
    assert payload["steps"]["count"] <= true["steps"]["count"]
    for part, complete in zip(spans(payload)[:1], spans(true)[:1], strict=True):
        assert part is None or part == pytest.approx(complete, abs=1)


@EVERY_LOG
def test_lines_of_ranks_in_another_order(tmp_path: Path, path: Path) -> None:
    """Neighbouring lines that one moment wrote change places, as outputs of ranks do."""
    draw, lines = random.Random(3), text_of(path).split("\n")
    block: list[str] = []
    mixed: list[str] = []
    for line in [*lines, ""]:
        if re.match(r"\s*\d{1,5}: |\[rank\d", line) and "Traceback" not in line and len(block) < 3:
            block.append(line)
            continue
        if not any("MLLOG" in old or "File " in old for old in block):
            draw.shuffle(block)
        mixed += [*block, line]
        block = []
    payload = report_json(written(tmp_path / "mixed.log", "\n".join(mixed)))
    assert verdict(payload) == verdict(plain(path))
