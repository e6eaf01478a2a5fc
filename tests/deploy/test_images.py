"""What an image installs runs: the lines of its file, in a folder of their own."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent import futures
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy" / "container"
IMAGES = sorted(FOLDER.glob("*.Containerfile"))
_VENV = f"{sys.executable} -m venv"
# As the agent asks: the answer names pod and device.
_ASK = """
import sys
from pathlib import Path
from lockstep_agent.sources.pod_resources import list_allocations
[found] = list_allocations(Path(sys.argv[1]))
print(found.namespace, found.pod, found.container, found.device)
"""


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


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_the_bill_of_materials_lists_what_the_lock_has(environment: Path) -> None:
    bill = json.loads((environment / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    parts = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    assert {"lockstep-train", "grpcio", "prometheus-client"} <= parts.keys()
    held = locked("agent")
    own = {"lockstep-train", "pip", "setuptools"}
    assert all(held[name] == version for name, version in parts.items() if name not in own)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_what_the_agents_image_installs_finds_the_pod_of_a_device(
    environment: Path, tmp_path: Path
) -> None:
    grpc = pytest.importorskip("grpc")
    from lockstep_agent.sources.pod_resources import message_classes  # noqa: PLC0415  # needs protobuf

    classes = message_classes()
    devices = classes["Devices"](resource_name="nvidia.com/gpu", device_ids=["GPU-1"])
    container = classes["Container"](name="trainer", devices=[devices])
    pod = classes["Pod"](name="llm-0", namespace="vision", containers=[container])
    response = classes["Response"](pod_resources=[pod])
    handler = grpc.unary_unary_rpc_method_handler(
        lambda *_: response,
        request_deserializer=classes["Request"].FromString,
        response_serializer=classes["Response"].SerializeToString,
    )
    server = grpc.server(futures.ThreadPoolExecutor(1))
    service = grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})
    server.add_generic_rpc_handlers((service,))
    socket = tmp_path / "kubelet.sock"
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        done = subprocess.run(
            [environment / "bin" / "python", "-I", "-c", _ASK, socket],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    finally:
        server.stop(None).wait()
    assert done.stdout.split() == ["vision", "llm-0", "trainer", "GPU-1"]
    command: list[str | Path] = [
        environment / "bin" / "lockstep",
        "agent",
        "--once",
        "--dir",
        tmp_path,
    ]
    once = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "lockstep_agent_info" in once.stdout
