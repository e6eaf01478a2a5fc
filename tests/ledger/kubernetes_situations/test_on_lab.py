"""The situations on a real control plane (`make kubernetes-lab`); those of `LIVE` take minutes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep_ledger.feeds.kubernetes.feed import Lease
from lockstep_ledger.feeds.kubernetes.server import ApiServer

from .cluster import Cluster
from .manifests import job, manifest, pod
from .perform import Findings, perform_all
from .scenario import Situation
from .script import SITUATIONS
from .stage import ACCOUNT, HOME, REPOSITORY, Stage, close_lab, open_lab, program_is_built, run_lab

pytestmark = [
    pytest.mark.server,
    # Watches of the diary are cut off as their server is stopped.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.skipif(
        not program_is_built("kube-apiserver"),
        reason="the control plane is not built; make kubernetes-lab builds it",
    ),
]


# Outages of feed, ledger and server, beside all that share a ledger.
LIVE_WAYS = frozenset({"stopped", "ledger", "leader"})
LIVE = frozenset({
    "ledger-killed-thrice", "cleaned-up-at-once", "clock-behind", "kind-is-forbidden",
    "server-restarts", "server-answers-410", "kind-comes-later",
})  # fmt: skip


def _param(situation: Situation) -> Any:
    """A part of them is run by CI, the rest before a release."""
    is_live = not situation.exclusive or situation.way in LIVE_WAYS or situation.name in LIVE
    marks = [pytest.mark.cluster] if is_live else [pytest.mark.release]
    return pytest.param(situation, id=situation.name, marks=marks)


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("lab")
    open_lab(folder)
    try:
        yield folder
    finally:
        close_lab(folder)


@pytest.fixture(name="findings", scope="module")
def _findings(request: pytest.FixtureRequest, folder: Path) -> Findings:
    """What is not right, by situation: all that are selected run before the first is judged."""
    called = [getattr(item, "callspec", None) for item in request.session.items]
    named = [each.params.get("situation") for each in called if each is not None]
    return perform_all([each for each in named if isinstance(each, Situation)], folder)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("situation", [_param(each) for each in SITUATIONS])
def test_the_ledger_has_what_an_engineer_expects(findings: Findings, situation: Situation) -> None:
    assert findings[situation.name] == []


@pytest.mark.cluster
@pytest.mark.parametrize("wrong_part", ["token", "authority"])
def test_a_server_that_refuses_or_is_not_trusted_is_named_once(
    folder: Path, tmp_path: Path, wrong_part: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = json.loads((folder / "kubeconfig").read_text(encoding="utf-8"))
    if wrong_part == "token":
        config["users"][0]["user"] = {"token": "wrong"}
    else:
        config["clusters"][0]["cluster"]["certificate-authority"] = str(folder / "clients.crt")
    path = tmp_path / "config"
    path.write_text(json.dumps(config), encoding="utf-8")
    lease = Lease(ApiServer(path), "default", "feed", "me")
    assert [lease.hold(None) for _ in range(3)] == [False] * 3
    [record] = [each for each in caplog.records if each.name.startswith("lockstep")]
    assert {"token": "401", "authority": "CERTIFICATE_VERIFY_FAILED"}[
        wrong_part
    ] in record.getMessage()


def read_granted() -> set[tuple[str, str, str]]:
    """Verb, group and resource of all that the shipped roles grant."""
    text = (REPOSITORY / "deploy/kubernetes/base/feed.yaml").read_text(encoding="utf-8")
    return {
        (verb, group, resource)
        for document in yaml.safe_load_all(text)
        for rule in document.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def read_requests(log: Path) -> tuple[set[tuple[str, str, str]], set[tuple[str, str, str]]]:
    """What the feed's account has requested for, and what of it was forbidden."""
    requested, forbidden = set(), set()
    for line in log.read_text(encoding="utf-8").splitlines():
        request = json.loads(line)
        target = request.get("objectRef")
        if target is not None and "resource" in target:
            key = (request["verb"], target.get("apiGroup", ""), target["resource"])
            requested.add(key)
            if request.get("responseStatus", {}).get("code") == 403:
                forbidden.add(key)
    return requested, forbidden


@pytest.mark.cluster
@pytest.mark.timeout(300)
def test_the_shipped_role_is_enough_and_no_more(tmp_path: Path) -> None:
    """A log of the server's requests says what the feed requested for: each verb, and no other."""
    log, policy = tmp_path / "audit.log", tmp_path / "policy.json"
    account = f"system:serviceaccount:{HOME}:{ACCOUNT}"
    rules = [
        {"level": "Metadata", "users": [account], "omitStages": ["RequestReceived"]},
        {"level": "None"},
    ]
    policy.write_text(
        json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})
    )
    folder = tmp_path / "lab"
    flags = [
        f"--apiserver-flag=--audit-policy-file={policy}",
        f"--apiserver-flag=--audit-log-path={log}",
    ]
    run_lab("up", str(folder), "--nodes", "2", "--gpus", "8", "--kinds", *flags)
    stage = Stage(folder)
    try:
        stage.open()
        cluster = Cluster(stage, "role")
        labels = {"app": "role"}
        template = pod("any", 1, labels=labels, restart="Always")
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        cluster.apply(manifest("apps/v1", "Deployment", "role-deployment", spec))
        cluster.apply(manifest("apps/v1", "StatefulSet", "role-set", spec | {"serviceName": "x"}))
        cluster.apply(job("role-job", 1, run=2))
        cluster.wait_condition("Job", "role-job", "Complete")
        granted = read_granted()
        stage.until(lambda: granted <= read_requests(log)[0], "every verb was used", 60)
        requested, forbidden = read_requests(log)
        assert forbidden == set()
        assert requested == granted
        cluster.close()
    finally:
        stage.close()
        close_lab(folder)
