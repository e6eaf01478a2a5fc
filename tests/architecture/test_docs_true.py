"""What the docs name is there: links, commands and their options; and each page is reached."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import click

REPOSITORY = Path(__file__).parents[2]
FRONT = sorted(REPOSITORY.glob("*.md"))
PAGES = sorted([*FRONT, *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("alerts/**/*.md")])
LINK = re.compile(r"\]\(([^)#]+?)(?:#[^)]*)?\)")
COMMAND = re.compile(r"\blockstep ([a-z]+)\b([^`\n|]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMANDS = {entry.name: entry for entry in entry_points(group="lockstep.commands")}


def by_path(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def links(page: Path) -> list[Path]:
    found = LINK.findall(page.read_text(encoding="utf-8"))
    return [(page.parent / link).resolve() for link in found if not link.startswith("http")]


def options_of(command: click.Command) -> set[str]:
    """The options of a command, and of those below it."""
    found = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    if not isinstance(command, click.Group):
        return found
    context = click.Context(command)
    below = (command.get_command(context, name) for name in command.list_commands(context))
    return found.union(*(options_of(subcommand) for subcommand in below if subcommand))


def test_every_link_leads_to_something() -> None:
    broken = [(by_path(page), link) for page in PAGES for link in links(page) if not link.exists()]
    assert broken == []


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
