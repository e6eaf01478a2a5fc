"""The files of ``deploy/`` that ship with the command, written with a site's values."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from lockstep_records.file_access.atomic_file import write_atomically

_PACKAGE = Path(__file__).parent
_PLACE = re.compile(r"@([A-Z_]+)@")
OLDEST_SYSTEMD = 239
"""Of the oldest distributions that training nodes run: RHEL 8 and its relatives."""
_CREDENTIALS_SYSTEMD = 247
_EXEC_SYSTEMD = 240
_CREDENTIAL = re.compile(r"^LoadCredential=(\S+?):(\S+)\n", re.MULTILINE)
_NO_CREDENTIALS = (
    "# systemd {version} has no credentials (247 has): chown lockstep-agent the files below.\n"
)


def deploy_options(command: Callable[..., object]) -> Callable[..., object]:
    """Adds the options that all deployments have."""
    for option in (
        click.option(
            "--command",
            "program",
            default="/opt/lockstep/bin/lockstep",
            show_default=True,
            help="Where lockstep is installed on the machines.",
        ),
        click.option(
            "--systemd",
            "systemd",
            type=int,
            help="Version of systemd for which units are written; this machine's by default.",
        ),
        click.option(
            "--to",
            "folder",
            type=click.Path(file_okay=False, path_type=Path),
            required=True,
            help="Folder to write to; it is created.",
        ),
    ):
        command = option(command)
    return command


def write_shipped(
    kind: str, folder: Path, values: Mapping[str, str], systemd: int | None
) -> list[Path]:
    """Writes a kind of deployment, values in place of ``@NAME@``; gives the paths.

    Units are for that version of systemd, this machine's when None; click.UsageError where it is
    too old, or the folder cannot be written.
    """
    version = _systemd_version() if systemd is None else systemd
    if version < OLDEST_SYSTEMD:
        raise click.UsageError(
            f"--systemd {version} is older than {OLDEST_SYSTEMD}, the oldest that the units are"
            f" written for; run the commands of the units by a supervisor of your own"
        )
    check_way(folder)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(shipped_folder(kind).iterdir()):
            text = source.read_text(encoding="utf-8")
            text = _PLACE.sub(lambda match: values.get(match[1], match[0]), text)
            path = folder / source.name
            unit = adapt_unit(text, version) if source.suffix == ".service" else text
            write_atomically(path, unit, mode=0o755 if text.startswith("#!") else 0o644)
            written.append(path)
    except OSError as error:
        raise click.UsageError(f"--to {folder}: {error.strerror}; name a writable folder") from None
    return written


def check_way(folder: Path) -> None:
    """Refuses a folder to which a link of another user leads, by a click.UsageError."""
    for part in (folder.absolute(), *folder.absolute().parents):
        user = part.lstat().st_uid if part.is_symlink() else 0
        if user not in {0, os.geteuid()}:
            raise click.UsageError(f"--to {folder}: {part} is a link of user {user}; name another")


def adapt_unit(unit: str, version: int) -> str:
    """The unit without what that version of systemd lacks."""
    if version < _EXEC_SYSTEMD:
        unit = unit.replace("Type=exec\n", "Type=simple\n")
    credentials = dict(_CREDENTIAL.findall(unit))
    if version >= _CREDENTIALS_SYSTEMD or not credentials:
        return unit
    for name, path in credentials.items():
        unit = unit.replace(f"${{CREDENTIALS_DIRECTORY}}/{name}", path)
    unit = _CREDENTIAL.sub("", unit)
    note = _NO_CREDENTIALS.format(version=version)
    return unit.replace("DynamicUser=yes\n", f"{note}User=lockstep-agent\nGroup=lockstep\n")


def shipped_folder(kind: str) -> Path:
    """Folder of the files of a kind of deployment: of the wheel, or of the checkout."""
    in_wheel = _PACKAGE / "shipped" / kind
    return in_wheel if in_wheel.exists() else _PACKAGE.parents[2] / "deploy" / kind


def _systemd_version() -> int:
    """That of this machine; without systemd the newest that units differ for."""
    program = shutil.which("systemctl")
    if program is None:
        return _CREDENTIALS_SYSTEMD
    printed = subprocess.run(
        [program, "--version"], capture_output=True, text=True, check=False, timeout=10
    )
    words = printed.stdout.split()
    return int(words[1]) if words[1:2] and words[1].isdecimal() else _CREDENTIALS_SYSTEMD
