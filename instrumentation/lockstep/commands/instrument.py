"""Prints the lines that instrument a training script, and what cannot be seen in it."""

import difflib
from pathlib import Path

import click

from lockstep.commands.proposed_lines import ProposedLines
from lockstep.commands.training_script import TrainingScript


@click.command()
@click.argument("path", metavar="SCRIPT", type=click.Path(dir_okay=False, path_type=Path))
def instrument(path: Path) -> None:
    """Print the lines to add to SCRIPT, which is read and never runs.

    They are a diff with line numbers, which patch applies. What cannot be seen in the script is
    said on stderr.
    """
    try:
        script = TrainingScript(path)
        proposed = ProposedLines(script)
        lines = proposed.apply()
    except (OSError, ValueError, RecursionError) as error:
        raise click.UsageError(f"SCRIPT {str(path)!r}: {error}") from error
    colours = {"+": "green", "-": "red", "@": "cyan"}
    names = str(path), str(path)
    for line in difflib.unified_diff(script.lines, lines, *names, n=1, lineterm=""):
        click.echo(click.style(line, fg=colours.get(line[0])))
    for note in proposed.notes:
        click.echo(f"lockstep: {note}", err=True)
