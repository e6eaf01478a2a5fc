"""``lockstep``: one subcommand per use, each brought by its room through an entry point."""

import ast
import sys
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import click

_GROUP = "lockstep.commands"
_BAD_INPUT = 2


def _summary(entry: EntryPoint) -> str:
    """First sentence of the command's module, read as text so that nothing is imported."""
    room, *inner = entry.module.split(".")
    spec = find_spec(room)
    if spec is None or spec.origin is None:
        return ""
    path = Path(spec.origin).parent.joinpath(*inner).with_suffix(".py")
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


class _Rooms(click.Group):
    """A group whose commands are entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(entry.name for entry in entry_points(group=_GROUP))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        found = entry_points(group=_GROUP, name=cmd_name)
        for entry in found:
            try:
                command = entry.load()
            except ModuleNotFoundError as error:
                raise click.UsageError(
                    f"command {cmd_name!r} needs the package {error.name!r}, which is not "
                    "installed; install the extra that brings it, see README.md"
                ) from error
            assert isinstance(command, click.Command)
            return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        entries = sorted(entry_points(group=_GROUP), key=lambda entry: entry.name)
        rows = [(entry.name, _summary(entry)) for entry in entries]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _version() -> str:
    try:
        return version("lockstep")
    except PackageNotFoundError:
        return "unknown"


@click.group(cls=_Rooms, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="lockstep")
def group() -> None:
    """Lockstep watches training clusters: who was slow, since when, why, what it cost."""


def main() -> None:
    """Runs the command; bad input ends with one sentence on stderr and exit status 2."""
    try:
        status = group.main(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.UsageError as error:
        click.echo(f"lockstep: {error.format_message()}", err=True)
        sys.exit(_BAD_INPUT)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        click.echo(f"lockstep: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
