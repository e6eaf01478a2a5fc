"""Rules over native histograms say the same as those over classic buckets, in a Prometheus 3."""

import shutil
import time
from pathlib import Path

import httpx
import pytest
import yaml
from servers import Exposition, free_port, running, serving, wait_until
from writers.spec_files import with_native_histograms

from lockstep_alerts.writers.formats import native
from lockstep_catalogue import ledger
from lockstep_catalogue.labels import CLUSTER
from lockstep_catalogue.promql import histogram_quantile

_SECONDS = 90.0
_CLASSIC = histogram_quantile(0.9, ledger.QUEUE_WAIT, "10s", CLUSTER)


class _Histogram(Exposition):
    """A histogram as the ledger serves it, whose buckets fill at different rates."""

    begin = time.time()

    def exposition(self) -> str:
        elapsed, count = time.time() - self.begin, 0
        name = ledger.QUEUE_WAIT.name
        lines = [f"# TYPE {name} histogram"]
        bounds = [*map(str, ledger.QUEUE_WAIT.buckets), "+Inf"]
        for number, bound in enumerate(bounds, 1):
            count += int(elapsed * number)
            lines.append(f'{name}_bucket{{cluster="c1",le="{bound}"}} {count}')
        lines += [f'{name}_sum{{cluster="c1"}} {count}', f'{name}_count{{cluster="c1"}} {count}']
        return "\n".join([*lines, ""])


def _value(url: str, expression: str, at: float) -> float | None:
    query = {"query": expression, "time": str(at)}
    answer = httpx.get(f"{url}/api/v1/query", params=query, trust_env=False).json()
    result = answer.get("data", {}).get("result", [])
    return float(result[0]["value"][1]) if result else None


@pytest.mark.server
@pytest.mark.release
@pytest.mark.timeout(180)
@pytest.mark.skipif(shutil.which("prometheus3") is None, reason="not on PATH: prometheus3")
def test_a_rule_over_a_converted_histogram_has_the_value_of_its_old_form(tmp_path: Path) -> None:
    with serving(_Histogram()) as exporter:
        target = {"targets": [exporter.target]}
        config = with_native_histograms(
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [
                    {"job_name": "a", "honor_labels": True, "static_configs": [target]}
                ],
            }
        )
        (tmp_path / "p.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        url = f"http://127.0.0.1:{free_port()}"
        command = [
            "prometheus3", f"--config.file={tmp_path}/p.yaml", "--storage.tsdb.path=data",
            f"--web.listen-address={url[7:]}", "--enable-feature=native-histograms",
        ]  # fmt: skip
        with running(command, tmp_path / "log", f"{url}/-/ready"):
            classic, converted = wait_until(lambda: _both(url), _SECONDS, pause=0.5)
    assert converted == pytest.approx(classic, rel=1e-9)


def _both(url: str) -> list[float]:
    """The values of both forms; none where one is missing."""
    at = time.time() - 2
    values = [_value(url, expression, at) for expression in (_CLASSIC, native(_CLASSIC))]
    return [value for value in values if value is not None] if None not in values else []
