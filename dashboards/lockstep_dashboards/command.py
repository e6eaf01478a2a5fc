"""Generates the Grafana boards, and runs all their queries against a Prometheus."""

from pathlib import Path

import click

from lockstep_dashboards.boards import BOARDS
from lockstep_dashboards.check import check
from lockstep_dashboards.provisioning import FORMATS
from lockstep_dashboards.snapshot.command import snapshot
from lockstep_dashboards.snapshot.server import serve
from lockstep_records.file_access.atomic_file import write_atomically

_GENERATED = Path("dashboards/generated")


@click.group()
def dashboards() -> None:
    """Generate Grafana boards from the catalogue, check them on a Prometheus, and draw them."""


dashboards.add_command(snapshot)
dashboards.add_command(serve)
dashboards.add_command(check)


@dashboards.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=_GENERATED,
    show_default=True,
    help="Folder that the boards are written to.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(sorted(FORMATS)),
    default="json",
    show_default=True,
    help="json: the boards; configmap: one for each board, for Kubernetes; provisioning: a folder"
    " that Grafana reads at start, boards included.",
)
@click.option("--check", "only_compare", is_flag=True, help="Write nothing; exit 1 on differences.")
def generate(*, out: Path, format_: str, only_compare: bool) -> int:
    """Write the boards as files that Grafana 10.3 to 13 load."""
    if out == _GENERATED and format_ != "json":
        raise click.UsageError(f"--format {format_} needs a folder of its own; name one by --out")
    if out == _GENERATED and not out.is_dir():
        raise click.UsageError(f"folder {out} does not exist; name one by --out")
    texts = {out / name: text for name, text in FORMATS[format_](BOARDS).items()}
    try:
        if only_compare:
            return _report_stale(texts)
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
            click.echo(path)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}; name a writable folder") from error
    return 0


def _report_stale(texts: dict[Path, str]) -> int:
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        click.echo(f"{path} differs from the generated board; run lockstep dashboards generate")
    return 1 if stale else 0
