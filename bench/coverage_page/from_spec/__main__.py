"""Writes all of it: ``PYTHONPATH=bench python -m coverage_page.from_spec``, in the repository."""

from pathlib import Path

from coverage_page.from_spec import catalogue_limits, runbook_lines, scrape_files
from lockstep_alerts.shipped import spec_path
from lockstep_alerts.spec import read_spec

if __name__ == "__main__":
    spec = read_spec(spec_path())
    files = {
        Path("catalogue/lockstep_catalogue/limits.py"): catalogue_limits.render(spec),
        **{Path("deploy", name): text for name, text in scrape_files.render(spec.windows).items()},
        **runbook_lines.render(spec),
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
