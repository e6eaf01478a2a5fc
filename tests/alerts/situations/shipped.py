"""The project's rules and routes as situations meet them, at a scrape interval."""

from pathlib import Path

from lockstep_alerts.output import render, write_files
from lockstep_alerts.reading.model import Delivery, Duration, group_wait_seconds
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

from .expand import Paging


def shipped(scrape: float, folder: Path) -> Paging:
    """Rules, grouping and waits as `lockstep alerts generate` writes them."""
    spec = read_spec(spec_path(), Duration(f"{scrape:g}s"))
    files = render(spec, Delivery())
    write_files(folder, files)
    return Paging(
        rule_files=sorted(folder.glob("*.rules.yaml")),
        group_wait_seconds=group_wait_seconds("critical", spec.windows.evaluation_seconds),
    )
