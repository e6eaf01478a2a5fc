"""Boards as ConfigMaps and as a provisioning folder, and the values that their variables offer."""

import json
from pathlib import Path

import httpx
import pytest
import yaml
from click.testing import CliRunner

from lockstep_dashboards.command import dashboards
from lockstep_dashboards.grafana import MAX_CONFIGMAP_BYTES, as_configmaps, as_provisioning
from lockstep_dashboards.layout import BOARDS
from lockstep_dashboards.scope import Scope, open_board
from lockstep_prometheus.client import Prometheus

JOB = BOARDS["job.json"]

SCOPE = Scope(end=1e9, range_seconds=900, scrape_seconds=15)


def test_each_board_is_a_configmap_that_the_sidecar_finds() -> None:
    files = as_configmaps(BOARDS)
    kustomization = yaml.safe_load(files.pop("kustomization.yaml"))
    assert kustomization["resources"] == list(files)
    for text, (name, board) in zip(files.values(), BOARDS.items(), strict=True):
        assert len(text.encode()) < MAX_CONFIGMAP_BYTES
        content = yaml.safe_load(text)
        assert (content["kind"], content["metadata"]["name"]) == ("ConfigMap", board.uid)
        assert content["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert content["metadata"]["annotations"]["grafana_folder"] == "Lockstep"
        assert json.loads(content["data"][name])["uid"] == board.uid


def test_the_provisioning_folder_has_provider_source_and_boards(tmp_path: Path) -> None:
    arguments = ["generate", "--format", "provisioning", "--out", str(tmp_path)]
    done = CliRunner().invoke(dashboards, arguments, standalone_mode=False)
    assert done.return_value == 0
    [provider] = yaml.safe_load((tmp_path / "dashboards/lockstep.yaml").read_text())["providers"]
    assert provider["allowUiUpdates"] is False
    [source] = yaml.safe_load((tmp_path / "datasources/lockstep.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    boards = tmp_path / "dashboards" / "lockstep"
    assert provider["options"]["path"].endswith("/dashboards/lockstep")
    assert sorted(path.name for path in boards.iterdir()) == sorted(BOARDS)
    assert len(as_provisioning(BOARDS)) == len(BOARDS) + 2


def test_other_formats_do_not_go_among_the_generated_boards() -> None:
    done = CliRunner().invoke(dashboards, ["generate", "--format", "configmap"])
    assert done.exit_code == 2
    assert "needs a folder of its own" in done.output


def offering(*values: str) -> Prometheus:
    text = json.dumps({"status": "success", "data": values})
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=text))
    return Prometheus("http://prometheus:9090", transport=transport)


def test_a_board_opens_for_the_first_job_where_none_is_chosen() -> None:
    with offering("job-10", "job-2") as server:
        opened = open_board(JOB, SCOPE, server)
    assert opened.chosen == {"job_id": ("job-2",)}
    assert opened.offered["job_id"] == ("job-2", "job-10")


def test_a_matcher_of_one_value_needs_one() -> None:
    assert SCOPE.fill('x{cluster=~"$cluster"}') == 'x{cluster=~".*"}'
    with pytest.raises(ValueError, match="job_id needs one value"):
        SCOPE.fill('x{job_id="$job_id"}')
