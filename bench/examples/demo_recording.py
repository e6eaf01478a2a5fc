"""Records what ``lockstep demo`` prints as text in two SVGs, light and dark.

``demo_recording.py [--seed N] [--to FOLDER]`` runs the demo for real, which takes minutes, and
writes ``demo-light.svg`` and ``demo-dark.svg``. Each event has its second since the demo began. Of
the report it keeps the verdict, and says how many lines it leaves out.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.highlighter import ReprHighlighter
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME

_WIDTH = 120
_THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}
# A viewer of a repository loads no fonts from elsewhere.
_SVG_FORMAT = re.sub(r"@font-face \{\{.*?\n\s*\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
_REPORT_BEGINS, _REPORT_ENDS = "  lost", "written: "


def record(command: list[str], folder: Path) -> list[str]:
    """Runs a command in a folder to its end; its lines.

    Raises:
        SystemExit: it failed.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "COLUMNS": str(_WIDTH), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines = []
        for text in process.stdout or ():
            lines.append(text.rstrip().replace(f"{folder}/", ""))
            print(lines[-1], flush=True)
    if process.returncode:
        raise SystemExit(f"the demo ended with {process.returncode}; nothing was written")
    return lines


def abridge(lines: Iterable[str]) -> Iterator[str]:
    """The lines without what follows the verdict in the report."""
    num_left_out = 0
    for line in lines:
        is_report = line.startswith(_REPORT_BEGINS) or num_left_out > 0
        if is_report and not line.startswith(_REPORT_ENDS):
            num_left_out += 1
            continue
        if num_left_out:
            yield f"  ({num_left_out} more lines of the report)"
            num_left_out = 0
        yield line


def draw(lines: Iterable[str], theme: str) -> str:
    """The lines as an SVG."""
    console, highlight = Console(record=True, width=_WIDTH, file=io.StringIO()), ReprHighlighter()
    for line in lines:
        console.print(highlight(line))
    return console.export_svg(
        title="lockstep demo",
        theme=_THEMES[theme],
        code_format=_SVG_FORMAT,
        unique_id=f"demo-{theme}",
    )


@click.command()
@click.option("--seed", default=7, show_default=True, help="Seed of the demo's fault.")
@click.option(
    "--to", "folder", type=click.Path(path_type=Path), default=Path("docs/img"), show_default=True
)
def main(seed: int, folder: Path) -> None:
    """Record the demo."""
    with tempfile.TemporaryDirectory() as out:
        demo = [sys.executable, "-m", "lockstep_cli.main", "demo", "--seed", str(seed)]
        lines = list(abridge(record(demo, Path(out))))
    for theme in _THEMES:
        path = folder / f"demo-{theme}.svg"
        path.write_text(draw(lines, theme), encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
