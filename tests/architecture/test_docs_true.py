"""Links, files, metrics, commands and options that the docs name exist; each page is reached."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import click
from servers import captured

from lockstep_catalogue import METRICS_NAMED, RECORDED

REPOSITORY = Path(__file__).parents[2]
FRONT = sorted(REPOSITORY.glob("*.md"))
PAGES = sorted([*FRONT, *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("alerts/**/*.md")])
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
COMMAND = re.compile(r"\blockstep ([a-z]+)\b([^`\n|]*)")
# A file by its path, or by the end of it; a folder between backticks. Capitals stand for a name.
FILE = re.compile(r"(?<![\w/.:*}-])((?:[\w.-]+/)+[\w-]+\.(?:py|yaml|md|c|h|sh|svg|toml))\b")
FOLDER = re.compile(r"`((?:[\w.-]+/)+)`")
STANDS_FOR = re.compile("NAME|FOLDER|FILE|JOB")
GONE = re.compile(r"at commit [0-9a-f]{7}")
METRIC = re.compile(r"`([a-z_:]*\blockstep_[a-z0-9_:]+)(?=[`{\[])")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMANDS = {entry.name: entry for entry in entry_points(group="lockstep.commands")}


def by_path(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def links(page: Path) -> list[Path]:
    found = LINK.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / link).resolve() for link in found if not link.startswith("http")]


def options_of(command: click.Command) -> set[str]:
    found = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    if not isinstance(command, click.Group):
        return found
    context = click.Context(command)
    below = (command.get_command(context, name) for name in command.list_commands(context))
    return found.union(*(options_of(subcommand) for subcommand in below if subcommand))


def test_every_link_leads_to_something() -> None:
    broken = [(by_path(page), link) for page in PAGES for link in links(page) if not link.exists()]
    assert broken == []


def _paths() -> set[str]:
    """The files and folders of the tree."""
    listing = captured(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
    ).stdout
    files = {f"/{name}" for name in listing.splitlines() if (REPOSITORY / name).exists()}
    return files | {f"{folder}/" for name in files for folder in map(str, Path(name).parents)}


def test_every_file_that_a_page_names_is_in_the_tree() -> None:
    ends = {path[at:] for path in _paths() for at, letter in enumerate(path) if letter == "/"}
    missing = [
        (by_path(page), name)
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if not GONE.search(line)
        for name in (*FILE.findall(LINK.sub("", line)), *FOLDER.findall(line))
        if f"/{name}" not in ends and "..." not in name and not STANDS_FOR.search(name)
    ]
    assert missing == []


def test_every_metric_that_a_page_names_is_declared() -> None:
    packages = {path.name for path in REPOSITORY.glob("*/lockstep_*")}
    declared = {*METRICS_NAMED, *(series.name for series in RECORDED), *packages}
    undeclared = [
        (by_path(page), name)
        for page in PAGES
        for name in METRIC.findall(page.read_text(encoding="utf-8"))
        if not {name, re.sub("_(bucket|sum|count)$", "", name)} & declared
    ]
    assert undeclared == []


def test_every_option_that_stands_beside_a_command_is_one_of_its() -> None:
    unknown = [
        (by_path(page), name, option)
        for page in PAGES
        for name, rest in COMMAND.findall(page.read_text(encoding="utf-8"))
        if name in COMMANDS
        for option in OPTION.findall(rest.partition(" && ")[0])
        if option not in {"--help", *options_of(COMMANDS[name].load())}
    ]
    assert unknown == []


def test_every_page_is_reached_from_the_front_pages() -> None:
    reached: set[Path] = set()
    waiting = [REPOSITORY / "README.md", REPOSITORY / "ARCHITECTURE.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        if page.is_dir():
            waiting += page.glob("*.md")
        elif page.suffix == ".md":
            waiting += links(page)
    assert [by_path(page) for page in PAGES if page not in {*reached, *FRONT}] == []


def test_the_readme_names_every_command() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    unnamed = {name for name in COMMANDS if f"lockstep {name}" not in readme}
    assert unnamed <= {"demo", "alerts", "dashboards"}  # make demo, make generate
