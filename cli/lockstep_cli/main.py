"""``lockstep``: one subcommand per use, each registered by its component as an entry point."""

import ast
import logging
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

_GROUP = "lockstep.commands"


def _summary(entry: EntryPoint) -> str:
    """First sentence of the command's module, read as text so that nothing is imported."""
    package, *inner = entry.module.split(".")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    path = Path(spec.origin).parent.joinpath(*inner).with_suffix(".py")
    if not path.is_file():
        return ""
    text = path.read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def _extras(entry: EntryPoint) -> str:
    extras = set(entry.dist.metadata.get_all("Provides-Extra") or ()) if entry.dist else set[str]()
    packages = {other.module.partition(".")[0] for other in entry_points(group=_GROUP)}
    extra_of = {package: package.removeprefix("lockstep_") for package in packages}
    own = extra_of[entry.module.partition(".")[0]]
    return own if own in extras else ",".join(sorted(extras & set(extra_of.values())))


def _refusal(command: str, missing: ModuleNotFoundError) -> click.UsageError:
    """The sentence with the missing package and its extra; raises it where it is our own."""
    from lockstep_records.distribution import install_hint  # noqa: PLC0415  # --help loads no component

    package = (missing.name or "").partition(".")[0]
    if not package or package.startswith("lockstep"):
        raise missing
    # An install from before the distribution was renamed may still bring the same command.
    entry = next(iter(entry_points(group=_GROUP, name=command)))
    return click.UsageError(
        f"command {command!r} needs the package {package!r}, which is not installed; "
        f"{install_hint(_extras(entry))}"
    )


class _Components(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(entry.name for entry in entry_points(group=_GROUP))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        for entry in entry_points(group=_GROUP, name=cmd_name):
            try:
                command = entry.load()
            except ModuleNotFoundError as error:
                raise _refusal(cmd_name, error) from error
            assert isinstance(command, click.Command)
            return command
        return None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:  # heavy packages are imported late, in the command
            raise _refusal(ctx.invoked_subcommand or "", error) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        entries = sorted(entry_points(group=_GROUP), key=lambda entry: entry.name)
        rows = [(entry.name, _summary(entry)) for entry in entries]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _print_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from lockstep_records.distribution import installed_version  # noqa: PLC0415  # the same

        click.echo(f"lockstep, version {installed_version()}")
        ctx.exit()


@click.group(cls=_Components, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def group() -> None:
    """Lockstep watches training clusters: who was slow, since when, why, what it cost."""


def main() -> None:
    """Runs the command; bad input gives one sentence on stderr and exit status 2."""
    from lockstep_records.text.printable import SafeLogRecord, safe_lines  # noqa: PLC0415  # the same

    logging.setLogRecordFactory(SafeLogRecord)
    try:
        status = group.main(standalone_mode=False)
        if sys.stdout is not None:  # the caller may have closed it
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:  # of bad input the exit code is 2
        click.echo(f"lockstep: {safe_lines(error.format_message())}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # who reads the output has seen enough, as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, UnicodeError, subprocess.SubprocessError) as error:
        # what the machine lacks or refuses, where no option can be named
        click.echo(f"lockstep: {safe_lines(' '.join(str(error).split()))}", err=True)
        sys.exit(2)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
