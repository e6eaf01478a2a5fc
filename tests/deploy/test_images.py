"""What an image installs runs: the lines of its file, in a folder of their own."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
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
