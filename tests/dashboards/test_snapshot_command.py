"""``lockstep dashboards snapshot``: bad input is one sentence, and never leaves half a file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from lockstep_dashboards.command import dashboards
from lockstep_dashboards.snapshot import command
from lockstep_prometheus.client import Prometheus

from .fake_prometheus import FakePrometheus, success

Handler = Callable[[httpx.Request], httpx.Response]


def snapshot(
    monkeypatch: pytest.MonkeyPatch,
    handler: Handler,
    folder: Path,
    *arguments: str,
    standalone: bool = True,
) -> Result:
    transport = httpx.MockTransport(handler)
    monkeypatch.setattr(command, "Prometheus", partial(Prometheus, transport=transport))
    out = ["--prometheus", "http://somebody:secret@prometheus", "--out", str(folder / "b.html")]
    line = ["snapshot", *(arguments or ("job",)), *out]
    return CliRunner().invoke(dashboards, line, standalone_mode=standalone)


def refused(done: Result, folder: Path) -> str:
    """The sentence of a refusal that left nothing behind."""
    assert done.exit_code == 2, done.output
    assert list(folder.iterdir()) == []
    assert "Traceback" not in done.output
    return " ".join(done.output.split())


def test_a_board_is_written_and_its_numbers_are_printed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakePrometheus()
    done = snapshot(monkeypatch, fake.answer, tmp_path, "job", "--from", "-15m", "--theme", "dark")
    assert done.exit_code == 0, done.output
    assert f"{len(fake.queries)} queries, 1 panels without data" in done.output
    assert 'data-theme="dark"' in (tmp_path / "b.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["b.html"]


def test_the_chosen_job_is_in_every_query(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakePrometheus(label_values={"job_id": ["other", "demo"], "cluster": ["c"]})
    line = ("lockstep-job", "--job", "demo", "--cluster", "c")
    assert snapshot(monkeypatch, fake.answer, tmp_path, *line).exit_code == 0
    assert all('cluster=~"c"' in query for query in fake.queries)
    # Causes in the cluster are of any job.
    others = [query for query in fake.queries if 'job_id="demo"' not in query]
    assert len(others) == 1
    assert "ClusterLosing" in others[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("jbo",), "board 'jbo' does not exist; did you mean job? the boards are"),
        (("job", "--from", "soon"), "'soon' is not a time; write now"),
        (("job", "--from", "2126-01-01"), "which is not over yet"),
        (("job", "--from", "-1m", "--to", "-2m"), "it must end later"),
        (("job", "--var", "node"), "--var 'node' must be NAME=VALUE"),
        (("job", "--var", "nodes=1"), "has no variable 'nodes'; it has"),
        (("job", "--job", "demi"), "no series has the job_id 'demi'"),
        (("job", "--job", "demi"), "there are: demo"),
        (("job", "--links", "grafana"), "--links 'grafana' must begin with http:// or https://"),
        (("job", "--scrape-interval", "5"), "is not a duration"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    done = snapshot(monkeypatch, FakePrometheus().answer, tmp_path, *arguments)
    assert sentence in refused(done, tmp_path)


def away(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("connection refused", request=request)


def replying(status: int, text: str) -> Handler:
    return lambda _: httpx.Response(status, text=text)


@pytest.mark.parametrize(
    ("handler", "sentence"),
    [
        (FakePrometheus(label_values={"job_id": ["b", "a"]}).answer, "name one by --job: a, b"),
        (FakePrometheus(label_values={}).answer, "no series has a job between"),
        (FakePrometheus(series=()).answer, "no panel of"),
        (away, "cannot be queried (connection refused)"),
        (replying(401, "who are you"), "refuses with status 401; give user and password"),
        (replying(403, "no"), "refuses with status 403; give user and password"),
        (
            replying(200, "<html>hello"),
            "does not answer with JSON (status 200); is it a Prometheus",
        ),
        (replying(200, "[]"), "does not answer as Prometheus does"),
        (replying(200, '{"status": "success"}'), "does not answer as Prometheus does"),
        (replying(200, '{"status": "success", "data": {"result": 1}}'), "as Prometheus does"),
        (replying(200, '{"status": "error", "error": "no such"}'), "no such"),
        (replying(200, "[" * 100_000), "does not answer with JSON"),
    ],
)
def test_what_cannot_be_drawn_and_what_does_not_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, handler: Handler, sentence: str
) -> None:
    text = refused(snapshot(monkeypatch, handler, tmp_path), tmp_path)
    assert sentence in text
    assert "secret" not in text


@pytest.mark.parametrize(
    "result",
    [
        [{"metric": {}}],
        [{"metric": [], "values": []}],
        [{"metric": {}, "values": [["x", "y"]]}],
        [{"metric": {}, "values": [[]]}],
        [None],
        {"a": 1},
    ],
)
def test_series_that_are_garbage_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, result: Any
) -> None:
    fake = FakePrometheus()

    def garbage(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/query_range"):
            return success({"resultType": "matrix", "result": result})
        return fake.answer(request)

    done = snapshot(monkeypatch, garbage, tmp_path)
    if result == [{"metric": {}}]:  # a native histogram: no value that anything here draws
        assert done.exit_code == 0
    else:
        assert "does not answer as Prometheus does" in refused(done, tmp_path)


def test_a_query_that_is_refused_is_on_its_panel_and_ends_in_status_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakePrometheus()

    def refuse_latency(request: httpx.Request) -> httpx.Response:
        if b"histogram_quantile" in request.read():
            return httpx.Response(422, text='{"status": "error", "error": "too many <samples>"}')
        return fake.answer(request)

    done = snapshot(monkeypatch, refuse_latency, tmp_path, standalone=False)
    assert done.return_value == 1
    page = (tmp_path / "b.html").read_text()
    assert "panel 'Step latency': Prometheus: too many <samples>" in done.output
    assert "Prometheus: too many &lt;samples&gt;" in page


def test_a_folder_that_is_missing_is_named_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakePrometheus()
    done = snapshot(monkeypatch, fake.answer, tmp_path / "missing")
    assert done.exit_code == 2
    assert "does not exist; create it" in done.output
    assert fake.queries == []


def test_without_chromium_the_html_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = snapshot(monkeypatch, FakePrometheus().answer, tmp_path, "job", "--png")
    assert done.exit_code == 2
    assert "--png needs Chromium, which is not on PATH" in " ".join(done.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["b.html"]
