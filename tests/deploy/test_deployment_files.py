"""The files in deploy/ that start agent, ledger and feed fit their schemas and the commands."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from servers import captured
from writers.spec_files import render_scrapes

from lockstep_agent.command import agent
from lockstep_agent.web.server import OPEN_TO_ALL as AGENT_PAGES
from lockstep_alerts.stack.servers import SCRAPE_LIMITS
from lockstep_catalogue.limits import DECLARED
from lockstep_ledger.commands.follow_kubernetes import follow_kubernetes
from lockstep_ledger.commands.serve import serve
from lockstep_ledger.feeds.kubernetes.objects import FOLLOWED
from lockstep_ledger.web.middleware import OPEN_TO_ALL as LEDGER_PAGES
from lockstep_records.text.durations import parse_duration

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
SCHEMAS = REPOSITORY / "tests" / "fixtures" / "kubernetes-schemas"
UNIT = DEPLOY / "systemd" / "lockstep-agent.service"
LEDGER_UNIT = (DEPLOY / "systemd" / "lockstep-ledger.service").read_text(encoding="utf-8")
SUPPORTED = ("1.28", "1.31", "1.34")
WORST_EXPOSURE = 2.5


def manifest(kind: str) -> dict[str, Any]:
    folder = DEPLOY / "kubernetes"
    paths = (
        folder / "base" / "agent.yaml",
        folder / "components/prometheus-operator/monitors.yaml",
    )
    parts = [part for path in paths for part in yaml.load_all(path.read_text(), yaml.CSafeLoader)]
    document = next(part for part in parts if part["kind"] == kind)
    assert isinstance(document, dict)
    return document


@pytest.fixture(name="pod")
def _pod() -> dict[str, Any]:
    spec = manifest("DaemonSet")["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def documents(name: str) -> dict[str, Any]:
    """Objects of a file of the base, by kind."""
    text = (DEPLOY / "kubernetes" / "base" / f"{name}.yaml").read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.load_all(text, yaml.CSafeLoader)}


def container_of(name: str, kind: str) -> dict[str, Any]:
    [found] = documents(name)[kind]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize("name", ["agent", "ledger", "feed"])
def test_the_manifests_fit_the_schemas_of_kubernetes(name: str, version: str) -> None:
    for document in documents(name).values():
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    ("name", "kind", "pages"),
    [("agent", "DaemonSet", AGENT_PAGES), ("ledger", "Deployment", LEDGER_PAGES)],
)
def test_probes_ask_pages_that_need_no_token(name: str, kind: str, pages: frozenset[str]) -> None:
    container = container_of(name, kind)
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in pages


def test_ledger_and_feed_use_options_that_their_commands_have() -> None:
    image = (DEPLOY / "container" / "ledger.Containerfile").read_text(encoding="utf-8")
    started = LEDGER_UNIT.partition("ExecStart=")[2] + image.partition("CMD")[2]
    words = [*container_of("ledger", "Deployment")["args"], *re.findall(r"--[a-z-]+", started)]
    for command, given in (
        (serve, words),
        (follow_kubernetes, container_of("feed", "Deployment")["args"]),
    ):
        assert options_of(given) <= {name for each in command.params for name in each.opts}


def test_the_ledger_has_one_writer_and_its_unit_writes_its_store_alone() -> None:
    spec = documents("ledger")["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    lines = LEDGER_UNIT.splitlines()
    assert {"ProtectSystem=strict", "CapabilityBoundingSet=", "DynamicUser=yes"} <= set(lines)
    store = re.search(r"LOCKSTEP_LEDGER_DSN=/var/lib/([a-z-]+)/", LEDGER_UNIT)
    assert store is not None
    assert f"StateDirectory={store[1]}" in lines


def test_the_feed_may_read_the_kinds_that_it_follows_and_write_nothing_but_its_lease() -> None:
    rules = documents("feed")["ClusterRole"]["rules"]
    granted = {
        f"{resource}.{group}".rstrip(".")
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    on_demand = {"deployments.apps", "replicasets.apps", "statefulsets.apps", "pods"}
    assert granted == FOLLOWED | on_demand
    assert all(rule["verbs"] == ["list", "watch"] for rule in rules)
    own = documents("feed")["Role"]["rules"]
    assert {resource for rule in own for resource in rule["resources"]} == {"leases"}


def closed(schema: Any) -> Any:
    """A schema in which unknown keys are errors, as the API server drops them without a word."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(part) for name, part in schema.items()}
    return inner | ({"additionalProperties": False} if "properties" in schema else {})


def test_the_pod_monitor_fits_the_operators_schema_and_finds_the_pods() -> None:
    definition = json.loads((SCHEMAS / "monitoring.coreos.com_podmonitors.json").read_text())
    schema = closed(definition["versions"]["v1"])
    monitor = manifest("PodMonitor")
    spec = schema["properties"]["spec"]
    jsonschema.validate(monitor["spec"], spec)
    limits = {re.sub("_.", lambda x: x[0][1].upper(), k): v for k, v in SCRAPE_LIMITS.items()}
    assert limits.items() <= monitor["spec"].items()
    plain = (DEPLOY / "kubernetes/components/plain-prometheus/scrape.yaml").read_text()
    agents, _ = yaml.safe_load(yaml.load(plain, yaml.CSafeLoader)["data"]["lockstep.yaml"])[
        "scrape_configs"
    ]
    assert SCRAPE_LIMITS.items() <= agents.items()
    pods = manifest("DaemonSet")["spec"]["template"]
    [container] = pods["spec"]["containers"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["metadata"]["namespace"] == manifest("DaemonSet")["metadata"]["namespace"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    secrets = {v["secret"]["secretName"] for v in pods["spec"]["volumes"] if "secret" in v}
    assert endpoint["authorization"]["credentials"]["name"] in secrets


def test_the_files_that_scrape_follow_from_the_declared_interval() -> None:
    for name, text in render_scrapes(DECLARED).items():
        assert (DEPLOY / name).read_text(encoding="utf-8") == text
    [endpoint] = manifest("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == f"{DECLARED.scrape_seconds}s"
    assert endpoint["honorLabels"] is True
    assert parse_duration(endpoint["scrapeTimeout"]) <= parse_duration(endpoint["interval"])


@pytest.mark.promtool
def test_promtool_takes_the_example_of_a_prometheus(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "prometheus" / "prometheus.yaml", tmp_path)
    shutil.copy(REPOSITORY / "alerts" / "generated" / "lockstep-jobs.rules.yaml", tmp_path)
    (tmp_path / "targets.json").write_text('[{"targets": ["node1:9440"]}]')
    command = ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pod_has_only_the_documented_privileges(pod: dict[str, Any]) -> None:
    [container] = pod["containers"]
    may = container["securityContext"]
    assert may["capabilities"] == {"drop": ["ALL"], "add": ["DAC_READ_SEARCH"]}
    assert may["allowPrivilegeEscalation"] is False
    assert may["readOnlyRootFilesystem"] is True
    assert "privileged" not in may
    assert pod["automountServiceAccountToken"] is False


def options_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def test_manifest_and_unit_use_options_that_the_command_has(pod: dict[str, Any]) -> None:
    flags = {name for option in agent.params for name in option.opts}
    [container] = pod["containers"]
    assert options_of(container["args"]) <= flags
    text = (DEPLOY / "systemd" / "agent.toml").read_text()
    settings = tomllib.loads(text)
    commented = re.findall(r"^# +(\w+) = ", text, re.MULTILINE)
    keys = {"--" + key.replace("_", "-") for key in (*settings, *commented)}
    assert {"--web-config", "--expect-gpus", "--expect-port"} <= keys
    assert keys <= flags


def test_the_settings_of_the_unit_are_taken_by_the_agent(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockstep_cli.main", "agent", "--once"]
    command += ["--config", str(DEPLOY / "systemd" / "agent.toml"), "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.startswith("# HELP ")


def directives() -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            values.setdefault(name, []).append(value)
    return values


def test_the_unit_may_write_only_its_state_and_has_one_capability() -> None:
    unit = directives()
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["StateDirectory"] == ["lockstep"]
    # Pages, in which it notes what the archive has.
    assert unit["ReadWritePaths"] == ["-/run/lockstep"]
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == ["CAP_SYSLOG"]
    assert unit["DevicePolicy"] == ["closed"]


def test_the_capabilities_for_nccl_are_those_that_an_agent_was_tried_with() -> None:
    patch = (DEPLOY / "kubernetes/components/nccl-status/agent.yaml").read_text(encoding="utf-8")
    held = {"DAC_READ_SEARCH", *(each["value"] for each in yaml.load(patch, yaml.CSafeLoader))}
    lines = UNIT.with_name("lockstep-agent-nccl.conf").read_text(encoding="utf-8").splitlines()
    settings = [line.partition("=") for line in lines if line.startswith(("Cap", "Amb"))]
    assert [value.replace("CAP_", "").split() for *_, value in settings] == [sorted(held)[::-1]] * 2


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze on PATH")
def test_systemd_has_no_complaint_and_reports_a_small_exposure(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/lockstep/bin/lockstep", "/bin/true"))
    lint = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    assert not [line for line in lint.stderr.splitlines() if copy.name in line]
    security = captured(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", copy], check=True
    )
    [level] = re.findall(r"Overall exposure level.*: ([0-9.]+) ", security.stdout)
    assert float(level) <= WORST_EXPOSURE


FOLDER = REPOSITORY / "deploy" / "container"
IMAGES = sorted(FOLDER.glob("*.Containerfile"))
_VENV = f"{sys.executable} -m venv"


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_an_image_runs_as_nobody_and_says_what_it_is(image: Path) -> None:
    text = image.read_text()
    assert "USER 65534:65534" in text
    assert "org.opencontainers.image.licenses" in text


def locked(name: str) -> dict[str, str]:
    """Version of each package of a lock file; every one has a hash."""
    entries = re.split(r"\n(?=[a-z0-9])", (FOLDER / f"{name}.lock").read_text())
    found = {}
    for entry in entries:
        assert "--hash=sha256:" in entry, entry
        package, _, version = entry.split(maxsplit=1)[0].partition("==")
        found[package] = version
    return found


# grpcio, of the extra kubernetes: without it no pod has a name.
@pytest.mark.parametrize(
    ("name", "extras"),
    [("agent", {"agent", "kubernetes", "archive"}), ("ledger", {"ledger", "kubernetes"})],
)
def test_a_lock_holds_what_the_project_asks_for(name: str, extras: set[str]) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *(each for extra in extras for each in optional[extra]),
    ]
    held = locked(name)
    for requirement in map(Requirement, requirements):
        assert requirement.specifier.contains(held[canonicalize_name(requirement.name)])


@pytest.fixture(name="environment", scope="module")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image of the agent has in /opt/lockstep, by its own lines from its own sources."""
    folder = tmp_path_factory.mktemp("image")
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.run(tracked, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for path in map(Path, paths.stdout.splitlines()):
        if path.parts[0] not in ignored:
            (folder / "source" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / path, folder / "source" / path)
    [image] = [path for path in IMAGES if path.name.startswith("agent")]
    lines = re.findall(r"^RUN (.+)$", image.read_text(), re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        words = line.replace("/opt/", f"{folder}/").replace("python -m venv", _VENV)
        subprocess.run(words, shell=True, cwd=folder / "source", check=True, timeout=900)  # noqa: S602  # our own lines
    return folder / "lockstep"


@pytest.mark.release
@pytest.mark.timeout(1200)
def test_the_bill_of_materials_lists_what_the_lock_has(environment: Path) -> None:
    bill = json.loads((environment / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    parts = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    assert {"lockstep-train", "grpcio", "prometheus-client"} <= parts.keys()
    held = locked("agent")
    own = {"lockstep-train", "pip", "setuptools"}
    assert all(held[name] == version for name, version in parts.items() if name not in own)
