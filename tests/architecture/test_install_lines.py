"""No file tells anybody to install this project by a name that the public index could answer."""

import re
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
COMMAND = re.compile(
    r"\b(?:pip3?|pipx|uv pip|uv tool|uv) (?:install|add)\b(?P<arguments>[^&|;\n]*)"
)
# a name of ours as a requirement: alone, with extras or with a version, and no path, wheel or URL
OURS = re.compile(r"lockstep(?:[-_.]\w+)*?(?:\[[\w,.-]*\])?(?:[=<>!~]=?[\w.*]+)?")
EXTRA_OF_OURS = re.compile(r"\blockstep(?:-train)?\[[a-z]")


def tracked_texts() -> list[Path]:
    command = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "--cached", "--others"]
    listed = subprocess.run(
        [*command, "--exclude-standard"], capture_output=True, text=True, check=True
    ).stdout
    paths = [REPOSITORY / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and path != Path(__file__)]


def names_to_install(text: str) -> list[str]:
    """Requirements of ours that a text installs by name, and extras written behind the name."""
    joined = re.sub(r"\\\n\s*", " ", text)
    arguments = [re.sub(r"\s#.*", "", match["arguments"]) for match in COMMAND.finditer(joined)]
    words = [word for argument in arguments for word in argument.split()]
    bare = [word.strip("'\"`,.:()") for word in words]
    return [word for word in bare if OURS.fullmatch(word)] + EXTRA_OF_OURS.findall(joined)


def test_every_install_line_names_a_path_a_wheel_or_a_url_of_ours() -> None:
    wrong = {}
    for path in tracked_texts():
        try:
            found = names_to_install(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:  # pictures and recordings
            continue
        if found:
            wrong[str(path.relative_to(REPOSITORY))] = found
    assert wrong == {}
