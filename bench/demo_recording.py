"""Records what ``lockstep demo`` prints, with the second of each line, as text in two SVGs.

``demo_recording.py [--seed N] [--to FOLDER]`` runs the demo for real, for about three minutes, and
writes ``demo-light.svg`` and ``demo-dark.svg``. Of the report it keeps the verdict, and says how
many lines it leaves out.
"""

import io
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.highlighter import ReprHighlighter
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

_WIDTH = 112
_THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": SVG_EXPORT_THEME}
# A viewer of a repository loads no fonts from elsewhere.
_SVG_FORMAT = re.sub(r"@font-face \{\{.*?\n\s*\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
_REPORT_BEGINS, _REPORT_ENDS = "  lost: ", "written: "


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line as it was printed.

    Attributes:
        seconds: since the demo's start.
    """

    seconds: float
    text: str


def record(command: list[str]) -> list[Line]:
    """Runs a command to its end; its lines as they come.

    Raises:
        SystemExit: it failed.
    """
    begin, lines = time.monotonic(), []
    environment = {"COLUMNS": str(_WIDTH - 8), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        ["env", *(f"{name}={value}" for name, value in environment.items()), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        for text in process.stdout or ():
            lines.append(Line(seconds=time.monotonic() - begin, text=text.rstrip()))
            print(f"{lines[-1].seconds:6.1f}  {lines[-1].text}", flush=True)
    if process.returncode:
        raise SystemExit(f"the demo ended with {process.returncode}; nothing was written")
    return lines


def abridge(lines: list[Line]) -> Iterator[Line]:
    """The lines without what follows the verdict in the report."""
    left_out: list[Line] = []
    is_inside = False
    for line in lines:
        is_inside = (is_inside or line.text.startswith(_REPORT_BEGINS)) and not (
            line.text.startswith(_REPORT_ENDS)
        )
        if is_inside:
            left_out.append(line)
            continue
        if left_out:
            text = f"  ({len(left_out)} more lines of the report)"
            yield Line(seconds=left_out[0].seconds, text=text)
            left_out = []
        yield line


def draw(lines: list[Line], theme: str) -> str:
    """The lines as an SVG."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO())
    highlight, second = ReprHighlighter(), None
    for line in lines:
        # The second stands where it changes.
        is_new = second != int(line.seconds)
        second = int(line.seconds)
        margin = Text(f"{second:5d} s  " if is_new else " " * 9, style="dim")
        console.print(margin + highlight(line.text), soft_wrap=True)
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
        lines = list(abridge(record([*demo, "--out", f"{out}/demo-out"])))
    for theme in _THEMES:
        path = folder / f"demo-{theme}.svg"
        path.write_text(draw(lines, theme), encoding="utf-8")
        print(f"written: {path}")


if __name__ == "__main__":
    main()
