"""A picture of a page, by Chromium without a window."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lockstep_records.file_access.atomic_file import write_atomically

WIDTH_PIXELS = 1440
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_MAX_HEIGHT_PIXELS = 16_000  # Chromium draws nothing beyond 16,384
_TIMEOUT_SECONDS = 120.0
_FLAGS = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--hide-scrollbars",
    # The page's clock runs ahead until its scripts have drawn every figure.
    "--virtual-time-budget=20000",
)
_SIGNATURE = b"\x89PNG"


class ScreenshotError(ValueError):
    """No picture was drawn; the text says why and what to do."""


def find_chromium() -> str:
    """The browser's program.

    Raises:
        ScreenshotError: it is not on PATH.
    """
    for name in _PROGRAMS:
        if program := shutil.which(name):
            return program
    raise ScreenshotError(
        "--png needs Chromium, which is not on PATH; install it (Debian package chromium),"
        " or print the HTML from any browser"
    )


def take_screenshot(page: Path, picture: Path, height_pixels: int) -> None:
    """Writes a PNG of a page that is 1440 pixels wide.

    Raises:
        ScreenshotError: Chromium is missing, or draws nothing.
        OSError: the picture cannot be written.
    """
    program = find_chromium()
    height = min(max(height_pixels, 200), _MAX_HEIGHT_PIXELS)
    with tempfile.TemporaryDirectory(prefix="lockstep-chromium-") as folder:
        drawn = Path(folder) / "page.png"
        # Chromium refuses its sandbox to root; the page is our own and asks no network.
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        command = [
            program,
            *_FLAGS,
            *sandbox,
            f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH_PIXELS},{height}",
            f"--screenshot={drawn}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise ScreenshotError(
                f"{program} drew nothing within {_TIMEOUT_SECONDS:.0f} s; the HTML is {page}"
            ) from error
        content = drawn.read_bytes() if drawn.is_file() else b""
        if not content.startswith(_SIGNATURE):
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
            raise ScreenshotError(f"{program} drew nothing ({lines[-1]}); the HTML is {page}")
        write_atomically(picture, content)
