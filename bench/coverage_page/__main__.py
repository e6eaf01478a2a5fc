"""Writes docs/coverage.md: ``PYTHONPATH=bench python -m coverage_page docs/coverage.md``."""

import sys
from pathlib import Path

from coverage_page.page import render

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
