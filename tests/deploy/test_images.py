"""What an image installs runs: the pip line of its file, in an environment of its own."""

import re
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
IMAGES = sorted((REPOSITORY / "deploy" / "container").glob("*.Containerfile"))
# As the agent asks: the answer names pod and device.
_ASK = """
import sys
from pathlib import Path
from lockstep_agent.sources.pod_resources import list_allocations
[found] = list_allocations(Path(sys.argv[1]))
print(found.namespace, found.pod, found.container, found.device)
"""


def extras_of(image: Path) -> str:
    [extras] = re.findall(r"pip install --no-cache-dir '\.\[([a-z,]+)\]'", image.read_text())
    assert isinstance(extras, str)
    return extras


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.stem)
def test_an_image_runs_as_nobody_and_has_what_its_program_asks_a_cluster_with(image: Path) -> None:
    text = image.read_text()
    assert "USER 65534:65534" in text
    assert "org.opencontainers.image.licenses" in text
    assert "kubernetes" in extras_of(image).split(",")  # grpcio: without it no pod has a name


@pytest.fixture(name="environment", scope="module")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [image] = [path for path in IMAGES if path.name.startswith("agent")]
    folder = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    requirement = f"{REPOSITORY}[{extras_of(image)}]"
    pip: list[str | Path] = [
        folder / "bin" / "pip",
        "install",
        "--quiet",
        "--no-cache-dir",
        requirement,
    ]
    subprocess.run(pip, check=True, timeout=900)
    return folder


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
