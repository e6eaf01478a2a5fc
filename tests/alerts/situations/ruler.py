"""Evaluates rules over the whole past of a situation, by a real Prometheus, a range query a rule.

promtool evaluates a hundred rules at each of thousands of instants; here the series are written by
remote write, the rules are asked stage by stage (a rule after those whose series it reads), and
what they record is written back with marks of staleness. ``for``, ``keep_firing_for`` and the
templates of labels are applied here as Prometheus' rule manager does. Simplified: scrapes and
evaluations fall on the same instants, and all groups are evaluated at the interval of the scrapes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from numpy.typing import NDArray
from servers import free_port, running

from lockstep_records.text.durations import parse_duration

from .fleet import Series

EPOCH = 1_760_000_400  # a whole hour; clocks in the series are moved to it
MAX_POINTS = 10_000  # Prometheus refuses 11,000
STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]
"""The NaN by which Prometheus marks that a series has ended."""
NAME = re.compile(r"[a-zA-Z_:][\w:]*")
Labels = dict[str, str]
Sample = tuple[Mapping[str, str], float]
Numbers = NDArray[np.float64]
SAMPLE = np.dtype([
    ("head", "S3"), ("value", "<f8"), ("tag", "S1"), ("stamp", "u1", 6),
])  # fmt: skip


@dataclass(frozen=True)
class Course:
    """A series as Prometheus holds it: a value a step, NaN where it has none."""

    labels: Labels
    values: Numbers


class Ruler:
    """A Prometheus that holds one situation, and the rules' answers about it."""

    def __init__(self, url: str, scrape: float, length: float) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=300)
        self._scrape = scrape
        self.times = np.arange(0.0, length + scrape / 2, scrape)
        self.template_answers: dict[str, list[Course]] = {}
        self._is_up = np.ones(len(self.times), dtype=bool)

    def close(self) -> None:
        self._client.close()

    def load(self, series: Sequence[Series]) -> None:
        """Write the situation's series; steps at which there is none are those of no Prometheus."""
        lines = []
        seen = np.zeros(len(self.times), dtype=bool)
        end = float(self.times[-1])
        for each in series:
            level, hides = (
                part[: len(self.times)] for part in each.course(self._scrape, end).arrays()
            )
            moves = EPOCH if each.labels["__name__"].endswith("_timestamp_seconds") else 0
            samples = level + moves
            # 0 is served, 1 absent, which Prometheus sees once, 2 a gap in which it sees nothing.
            seen |= hides != 2
            looked = np.flatnonzero(hides != 2)
            ends = looked[1:][(hides[looked][1:] == 1) & (hides[looked][:-1] == 0)]
            samples[ends] = STALE
            written = hides == 0
            written[ends] = True
            lines.append(_encoded(each.labels, self.times[written], samples[written]))
        self._is_up = seen
        self._write(lines)

    def firing(self, rule_files: Iterable[Path]) -> dict[float, list[Labels]]:
        """Labels of the alerts that fire, by the second at which Prometheus evaluates its rules."""
        found: dict[float, list[Labels]] = {float(second): [] for second in self.times[self._is_up]}
        for stage in stages(rule_files):
            written = []
            for rule in stage:
                if "record" in rule:
                    written += self._recorded(rule)
                    continue
                courses = self._alerts(rule)
                for course in courses:
                    for second in self.times[self._is_up & ~np.isnan(course.values)]:
                        found[float(second)].append(course.labels)
                written += courses
            self._write([self._encoded_with_staleness(course) for course in written])
        return found

    def _recorded(self, rule: Mapping[str, Any]) -> list[Course]:
        labels = {"__name__": rule["record"]} | rule.get("labels", {})
        if rule["record"] in NAME.findall(rule["expr"]):
            return self._recorded_by_steps(rule, labels)
        return [
            Course(_without_name(course.labels) | labels, course.values)
            for course in self.query(rule["expr"])
        ]

    def _recorded_by_steps(self, rule: Mapping[str, Any], labels: Labels) -> list[Course]:
        """A series that carries on from its own past is asked and written a step at a time."""
        last: dict[tuple[tuple[str, str], ...], float] = {}
        for second in self.times[self._is_up]:
            answer = self._get("query", query=rule["expr"], time=EPOCH + second)
            now = {
                tuple(sorted((_without_name(each["metric"]) | labels).items())): float(
                    each["value"][1]
                )
                for each in answer["result"]
            }
            gone = dict.fromkeys(last.keys() - now.keys(), STALE)
            self._write([
                _encoded(dict(key), np.array([second]), np.array([value]))
                for key, value in (now | gone).items()
            ])  # fmt: skip
            last = now
        return []

    def _alerts(self, rule: Mapping[str, Any]) -> list[Course]:
        """The firing alerts of a rule, by labels as people get them."""
        active: dict[tuple[tuple[str, str], ...], NDArray[np.bool_]] = {}
        own = {"alertname": rule["alert"]}
        for course in self.query(rule["expr"]):
            labels = _without_name(course.labels)
            for index in np.flatnonzero(~np.isnan(course.values)):
                texts = {
                    name: expand(
                        text, labels, float(course.values[index]), self._answers(int(index))
                    )
                    for name, text in rule.get("labels", {}).items()
                }
                key = tuple(sorted((labels | texts | own).items()))
                active.setdefault(key, np.zeros(len(self.times), dtype=bool))[index] = True
        pending = parse_duration(rule.get("for", "0s"))
        keeping = parse_duration(rule.get("keep_firing_for", "0s"))
        state = {"__name__": "ALERTS", "alertstate": "firing"}
        return [
            Course(dict(key) | state, fires)
            for key, is_active in active.items()
            if not np.isnan(fires := self._held(is_active, pending, keeping)).all()
        ]

    def _held(self, is_active: NDArray[np.bool_], pending: float, keeping: float) -> Numbers:
        """1 where an alert fires, as the rule manager holds it, else NaN."""
        fires = np.full(len(self.times), np.nan)
        since: float | None = None
        missing: float | None = None
        is_firing = False
        for index in np.flatnonzero(self._is_up):
            second = self.times[index]
            if is_active[index]:
                missing = None
                since = second if since is None else since
                is_firing = is_firing or second - since >= pending
            elif is_firing and keeping:
                missing = second if missing is None else missing
                is_firing = second - missing < keeping
            else:
                is_firing = False
            if not is_active[index] and not is_firing:
                since = missing = None
            if is_firing:
                fires[index] = 1.0
        return fires

    def _answers(self, index: int) -> "Answers":
        return Answers(self, index)

    def query(self, expression: str) -> list[Course]:
        """The answer at each step at which there is a Prometheus."""
        found: dict[tuple[tuple[str, str], ...], Numbers] = {}
        for first in range(0, len(self.times), MAX_POINTS):
            part = self.times[first : first + MAX_POINTS]
            answer = self._get(
                "query_range",
                query=expression,
                start=EPOCH + part[0],
                end=EPOCH + part[-1],
                step=self._scrape,
            )
            series = answer["result"]
            if answer["resultType"] != "matrix":
                raise RuntimeError(f"{expression!r} is a {answer['resultType']}")
            for each in series:
                key = tuple(sorted(each["metric"].items()))
                values = found.setdefault(key, np.full(len(self.times), np.nan))
                stamps, texts = zip(*each["values"], strict=True)
                indices = np.rint((np.array(stamps) - EPOCH) / self._scrape).astype(np.intp)
                values[indices] = np.array(texts, dtype=np.float64)
        for values in found.values():
            values[~self._is_up] = np.nan
        return [Course(dict(key), values) for key, values in found.items()]

    def _encoded_with_staleness(self, course: Course) -> bytes:
        has = ~np.isnan(course.values)
        before = np.concatenate([[False], has[self._is_up][:-1]])
        ends = np.zeros(len(has), dtype=bool)
        ends[self._is_up] = before & ~has[self._is_up]
        values = np.where(ends, STALE, course.values)
        return _encoded(course.labels, self.times[has | ends], values[has | ends])

    def _write(self, series: Sequence[bytes]) -> None:
        for first in range(0, len(series), 2000):
            body = b"".join(series[first : first + 2000])
            if body:
                headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
                answer = self._client.post("/api/v1/write", content=_snappy(body), headers=headers)
                if answer.is_error:
                    raise RuntimeError(f"Prometheus refuses the series: {answer.text[:500]}")

    def _get(self, path: str, **parameters: Any) -> dict[str, Any]:
        answer = self._client.post(f"/api/v1/{path}", data=parameters)
        content: dict[str, Any] = answer.json()
        if content["status"] != "success":
            raise RuntimeError(f"{content['error']} in {parameters['query']!r}")
        data: dict[str, Any] = content["data"]
        return data


@dataclass(frozen=True)
class Answers:
    """What a template's queries answer at a step."""

    ruler: Ruler
    index: int

    def __call__(self, expression: str) -> list[Sample]:
        answers = self.ruler.template_answers
        if expression not in answers:
            answers[expression] = self.ruler.query(expression)
        return [
            (course.labels, float(course.values[self.index]))
            for course in answers[expression]
            if not np.isnan(course.values[self.index])
        ]


def stages(rule_files: Iterable[Path]) -> Iterator[list[dict[str, Any]]]:
    """The rules, each stage reading only what the stages before it have recorded."""
    files = [yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader) for path in rule_files]
    waiting = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    reads = {
        id(rule): set(NAME.findall(rule["expr"] + "".join(rule.get("labels", {}).values())))
        for rule in waiting
    }
    while waiting:
        missing = {rule["record"] for rule in waiting if "record" in rule}
        if any("alert" in rule and "ALERTS" not in reads[id(rule)] for rule in waiting):
            missing.add("ALERTS")
        ready = [rule for rule in waiting if not reads[id(rule)] & missing - {rule.get("record")}]
        if not ready:
            raise ValueError(f"rules read each other in a circle: {sorted(missing)}")
        yield ready
        ready_ids = {id(rule) for rule in ready}
        waiting = [rule for rule in waiting if id(rule) not in ready_ids]


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    """Address of an empty Prometheus that takes series of any time; it ends with the block."""
    config, url = folder / "prometheus.yaml", f"http://127.0.0.1:{free_port()}"
    config.write_text("global: {evaluation_interval: 60s}\n", encoding="utf-8")
    options = [
        f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={url[7:]}", "--web.enable-remote-write-receiver",
        # Each series is written to its end before the next one: all of it is of one block.
        "--storage.tsdb.min-block-duration=2000d", "--storage.tsdb.max-block-duration=2000d",
        "--storage.tsdb.retention.time=100y", "--query.timeout=10m",
        "--query.max-samples=500000000",
    ]  # fmt: skip
    with running(["prometheus", *options], folder / "prometheus.log", f"{url}/-/ready") as is_ready:
        assert is_ready, (folder / "prometheus.log").read_text()
        yield url


def _without_name(labels: Mapping[str, str]) -> Labels:
    return {name: value for name, value in labels.items() if name != "__name__"}


def _encoded(labels: Mapping[str, str], times: Numbers, values: Numbers) -> bytes:
    """One ``timeseries`` of Prometheus' ``WriteRequest``."""
    parts = b""
    for name, value in sorted(labels.items()):
        if value:
            label = _field(1, name.encode()) + _field(2, value.encode())
            parts += _field(1, label)
    samples = np.empty(len(times), dtype=SAMPLE)
    # Field 2, 16 bytes: a double as field 1, and a stamp of six bytes as field 2.
    samples["head"], samples["tag"] = b"\x12\x10\x09", b"\x10"
    samples["value"] = values
    stamps = np.rint((times + EPOCH) * 1000).astype(np.uint64)
    for byte in range(6):
        part = (stamps >> np.uint64(7 * byte)) & np.uint64(0x7F)
        samples["stamp"][:, byte] = part | (np.uint64(0x80) if byte < 5 else np.uint64(0))
    return _field(1, parts + samples.tobytes())


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _snappy(body: bytes) -> bytes:
    """The body as one literal of snappy: valid, and not compressed."""
    return _varint(len(body)) + bytes([63 << 2]) + (len(body) - 1).to_bytes(4, "little") + body


Query = Callable[[str], list[Sample]]
_TOKEN = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`|\(|\)|\||[^\s()|]+')


def expand(text: str, labels: Mapping[str, str], value: float, query: Query) -> str:
    if "{{" not in text:
        return text
    parts = _TOKEN.split(text)
    return _Expansion(parts, labels, value, query).block(0, None, is_shown=True)[0]


class _Expansion:
    def __init__(
        self, parts: list[str], labels: Mapping[str, str], value: float, query: Query
    ) -> None:
        self._parts, self._labels, self._value, self._query = parts, labels, value, query

    def block(self, index: int, dot: Any, *, is_shown: bool) -> tuple[str, int, str]:
        """Text from a part on, the part that ends it, and whether by else or end."""
        found = ""
        while index < len(self._parts):
            if index % 2 == 0:
                found += self._parts[index] if is_shown else ""
                index += 1
                continue
            action, _, rest = self._parts[index].partition(" ")
            if action in {"end", "else"}:
                return found, index, action
            if action in {"with", "if"}:
                value = self._pipeline(rest, dot) if is_shown else None
                inner = value if action == "with" else dot
                text, index, ending = self.block(
                    index + 1, inner, is_shown=is_shown and bool(value)
                )
                found += text
                if ending == "else":
                    is_printed = is_shown and not value
                    text, index, _ = self.block(index + 1, dot, is_shown=is_printed)
                    found += text
            elif is_shown:
                found += str(self._pipeline(self._parts[index], dot))
            index += 1
        return found, index, ""

    def _pipeline(self, text: str, dot: Any) -> Any:
        words = _WORD.findall(text)
        value, rest = self._command(words, dot, [])
        while rest:
            value, rest = self._command(rest[1:], dot, [value])
        return value

    def _command(self, words: list[str], dot: Any, piped: list[Any]) -> tuple[Any, list[str]]:
        values: list[Any] = []
        index = 0
        while index < len(words) and words[index] not in {"|", ")"}:
            if words[index] == "(":
                value, rest = self._command(words[index + 1 :], dot, [])
                while rest and rest[0] == "|":
                    value, rest = self._command(rest[1:], dot, [value])
                values.append(value)
                index = len(words) - len(rest) + 1
                continue
            values.append(self._word(words[index], dot))
            index += 1
        head, *arguments = values
        result = head(*arguments, *piped) if callable(head) else head
        return result, words[index:]

    def _word(self, word: str, dot: Any) -> Any:
        functions: dict[str, Any] = {
            "query": self._query,
            "first": lambda samples: samples[0],
            "label": lambda name, sample: sample[0].get(name, ""),
            "value": lambda sample: sample[1],
            "printf": lambda text, *values: text.replace("%q", '"%s"') % values,
            "or": lambda *values: next((each for each in values if each), values[-1]),
            "and": lambda *values: next((each for each in values if not each), values[-1]),
            "not": lambda operand: not operand,
            "eq": lambda left, right: left == right,
            "ne": lambda left, right: left != right,
            "gt": lambda left, right: left > right,
            "lt": lambda left, right: left < right,
        }
        if word[0] in '"`':
            return word[1:-1].replace('\\"', '"')
        if word.startswith("$labels."):
            return self._labels.get(word[8:], "")
        if word == "$value":
            return self._value
        if word == ".":
            return dot
        if re.fullmatch(r"-?[\d.]+", word):
            return float(word)
        if word in functions:
            return functions[word]
        raise ValueError(f"template word {word!r} is not known here")
