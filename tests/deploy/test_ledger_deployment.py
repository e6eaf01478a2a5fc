"""The files in deploy/ that start the ledger: they fit their schemas, and the command itself."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lockstep_ledger.commands.serve import serve
from lockstep_ledger.web.middleware import OPEN_TO_ALL

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCUMENTS = {
    part["kind"]: part
    for part in yaml.safe_load_all((DEPLOY / "kubernetes" / "base" / "ledger.yaml").read_text())
}
UNIT = (DEPLOY / "systemd" / "lockstep-ledger.service").read_text()
IMAGE = (DEPLOY / "container" / "ledger.Containerfile").read_text()


def container() -> dict[str, Any]:
    [found] = DOCUMENTS["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("kind", sorted(DOCUMENTS))
def test_the_ledgers_manifests_fit_the_schemas_of_kubernetes(kind: str) -> None:
    for version in ("1.28", "1.34"):
        kubernetes_validate.validate(DOCUMENTS[kind], version, strict=True)


def test_manifest_unit_and_image_use_options_that_the_command_has() -> None:
    options = {name for parameter in serve.params for name in parameter.opts}
    started = UNIT.partition("ExecStart=")[2] + IMAGE.partition("CMD")[2]
    words = [*container()["args"], *re.findall(r"--[a-z-]+", started)]
    assert {word.partition("=")[0] for word in words} <= options
    assert "--writer-tokens" in words[1]


def test_the_ledger_has_one_writer_and_probes_that_need_no_token() -> None:
    assert DOCUMENTS["Deployment"]["spec"]["replicas"] == 1
    assert DOCUMENTS["Deployment"]["spec"]["strategy"]["type"] == "Recreate"
    probes = (container()[f"{name}Probe"] for name in ("readiness", "liveness"))
    assert {probe["httpGet"]["path"] for probe in probes} == OPEN_TO_ALL


def test_the_unit_may_write_its_store_and_nothing_else() -> None:
    lines = UNIT.splitlines()
    assert "ProtectSystem=strict" in lines
    assert "CapabilityBoundingSet=" in lines
    assert "DynamicUser=yes" in lines
    store = re.search(r"LOCKSTEP_LEDGER_DSN=/var/lib/([a-z-]+)/", UNIT)
    assert store is not None
    assert f"StateDirectory={store[1]}" in lines
