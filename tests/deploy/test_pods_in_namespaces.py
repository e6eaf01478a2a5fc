"""Two jobs of two pods each, watched by what is shipped: manifests, credentials, configuration.

The pods are namespaces of this machine (``bench/namespaces``): the agent, the ledger and the
training pods run as their manifests say, and Prometheus asks them by the shipped scrape file.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from namespaces.containers import may_make_user_namespaces
from tenants import users

_ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net")
_DAC_READ_SEARCH = 1 << 2
_JOBS = {"vision": "llm", "speech": "bert"}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    pytest.mark.server,
    pytest.mark.distributed,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "ip"))),
        reason="namespaces of other users take root, util-linux and iproute2",
    ),
]


def _may_make_namespaces() -> bool:
    return subprocess.run([*_ALONE, "true"], check=False, capture_output=True).returncode == 0


def _findings(folder: Path) -> dict[str, Any]:
    """What the scenario found; its namespaces end with it, and so does all that runs in them."""
    done = subprocess.run(
        [*_ALONE, sys.executable, "-m", "namespaces.pods", folder],
        env=users.environment(folder),
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    logs = [f"== {path}\n{path.read_text()[-1500:]}" for path in folder.rglob("*.log")]
    assert done.returncode == 0, "\n".join([done.stdout, *logs])
    found: dict[str, Any] = json.loads((folder / "findings.json").read_text())
    return found


def test_two_jobs_in_pods_are_two_and_a_slow_rank_is_paged_once_with_pod(tmp_path: Path) -> None:
    if not _may_make_namespaces():
        pytest.skip("no namespaces here")
    found = _findings(tmp_path)
    _check_processes(found["processes"])

    assert found["up"] == {"prometheus": "1", "lockstep-agent": "1", "lockstep-ledger": "1"}
    assert found["volumes"] == 4
    places = {
        (each["namespace"], each["pod"], each["rank"], each["container"], each["node"])
        for each in found["ranks"]
    }
    assert places == {
        (namespace, f"{name}-{rank}", f"{rank}", "node", "node-1")
        for namespace, name in _JOBS.items()
        for rank in (0, 1)
    }
    ids = {each["namespace"]: each["job_id"] for each in found["ranks"]}
    assert found["jobs"] == sorted(ids.values())
    assert [job_id.rpartition("-")[0] for job_id in found["jobs"]] == ["speech.bert", "vision.llm"]

    [page] = found["pages"]
    assert page["labels"]["job_id"] == ids["vision"]
    assert (page["labels"]["rank"], page["labels"]["node"]) == ("1", "node-1")
    assert page["labels"]["phase"] == "forward"
    assert "vision/llm-1" in page["annotations"]["description"]

    assert found["killed"]["outcome"] == "failed"
    assert found["killed"]["cause_rank"] == 1
    assert "SIGKILL" in found["killed"]["reason"]
    assert (found["slow"]["status"], found["slow"]["outcome"]) == ("running", None)
    for record in (found["killed"], found["slow"]):
        assert (record["attempts"], record["requeues"]) == (1, 0)
        assert [each["node"] for each in record["nodes"]] == ["node-1", "node-1/2"]


def _check_processes(processes: dict[str, Any]) -> None:
    """They were what the manifests say, or the test shows less than it claims."""
    agent = processes.pop("agent")
    assert (agent["uid"], agent["capabilities"]) == (0, _DAC_READ_SEARCH)
    assert agent["root_is_read_only"]
    ledger = processes.pop("ledger")
    assert (ledger["uid"], ledger["capabilities"]) == (65534, 0)
    assert ledger["root_is_read_only"]
    assert {each["uid"] for each in processes.values()} == {1000}
    assert {each["capabilities"] for each in processes.values()} == {0}
    others = [agent, ledger, *processes.values()]
    kinds = ("pid", "mnt", "uts", *(["user"] if may_make_user_namespaces() else []))
    for kind in kinds:
        assert len({each["namespaces"][kind] for each in others}) == len(others), kind
