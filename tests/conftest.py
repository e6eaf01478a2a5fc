"""Skips what needs a program that this machine lacks, and starts the long tests first."""

import shutil

import pytest

PROGRAMS = {
    "server": ("prometheus", "amtool"),
    "promtool": ("promtool", "amtool"),
}
LONG = ("e2e", "distributed", "server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        marker: [name for name in names if shutil.which(name) is None]
        for marker, names in PROGRAMS.items()
    }
    for item in items:
        for marker, names in missing.items():
            if names and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"not on PATH: {', '.join(names)}"))
    # Several workers end at about the same time when what is left at the end is short.
    items.sort(key=lambda item: not any(map(item.get_closest_marker, LONG)))
