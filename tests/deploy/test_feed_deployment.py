"""The feed's manifest fits the schemas, the command, and what is promised."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lockstep_ledger.commands.follow_kubernetes import follow_kubernetes
from lockstep_ledger.feeds.kubernetes.kinds import FOLLOWED

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCUMENTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "base" / "feed.yaml").read_text()))
ON_DEMAND = {"deployments.apps", "replicasets.apps", "statefulsets.apps", "pods"}


def container() -> dict[str, Any]:
    [deployment] = [each for each in DOCUMENTS if each["kind"] == "Deployment"]
    [found] = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each["kind"])
@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_the_manifest_fits_the_schemas_of_kubernetes(document: Any, version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_the_deployment_uses_options_that_the_command_has() -> None:
    options = {name for parameter in follow_kubernetes.params for name in parameter.opts}
    assert container()["command"] == ["lockstep", "ledger", "follow", "kubernetes"]
    assert {word.partition("=")[0] for word in container()["args"]} <= options


def test_the_role_reads_the_kinds_that_the_feed_follows_and_writes_nothing_but_its_lease() -> None:
    [role] = [each for each in DOCUMENTS if each["kind"] == "ClusterRole"]
    granted = {
        f"{resource}.{group}".rstrip(".")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == FOLLOWED | ON_DEMAND
    assert all(rule["verbs"] == ["list", "watch"] for rule in role["rules"])
    [own] = [each for each in DOCUMENTS if each["kind"] == "Role"]
    assert {resource for rule in own["rules"] for resource in rule["resources"]} == {"leases"}
