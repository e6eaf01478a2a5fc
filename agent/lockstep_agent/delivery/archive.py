"""Copies pages and events of jobs to an archive, in a child process that cannot hold up the agent.

The child is ``python -m lockstep_agent.delivery.archive URL ROOT...``. It ends with the agent,
because the end of the agent closes its stdin. It writes URL/jobs/JOB_ID/ATTEMPT/rank-00003.page,
the layout of the node, so that ``lockstep report`` reads a job there like one on the node.
"""

import json
import logging
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lockstep_agent.collector import Reading, Tier
from lockstep_agent.delivery.copier import Copier
from lockstep_catalogue import agent
from lockstep_records.files.jobs import Roots

_log = logging.getLogger(__name__)

_POLL_SECONDS = 10.0
_SILENT_SECONDS = 60.0  # the child reports after every file, and once a poll at least
# Lowest priority: a copy has time, the job on the same node has not.
_NICE = 19
_BAD_ADDRESS = 2


class Archive:
    """Runs the child process, restarts it when it ended, and reports its counts.

    Args:
        root: folder that holds ``jobs/``, or several.
        url: of the archive; None archives nothing.
        silent_seconds: a child that reports nothing for so long waits for storage that does not
            answer, which is logged once. No second child is started: it would wait there too.
    """

    name = "archive"
    tier = Tier.TEN_SECONDS

    def __init__(
        self, root: Roots, url: str | None, *, silent_seconds: float = _SILENT_SECONDS
    ) -> None:
        self._silent_seconds = silent_seconds
        self._reported_seconds = 0.0
        self._is_silent = False
        self._command = [
            sys.executable,
            "-m",
            "lockstep_agent.delivery.archive",
            url or "",
            *map(str, (root,) if isinstance(root, Path) else root),
        ]
        self._url = url
        self._child: subprocess.Popen[bytes] | None = None
        self._earlier_counts = Counter(copied=0, failed=0)
        self._child_counts = {"copied": 0, "failed": 0}
        self._partial_line = b""

    def collect(self) -> Iterator[Reading]:
        """Files copied and not copied, over all child processes of this agent."""
        if self._url is not None:
            self._supervise()
        for outcome, earlier in self._earlier_counts.items():
            count = earlier + self._child_counts[outcome]
            yield Reading(agent.ARCHIVED_FILES, (outcome,), count)

    def _supervise(self) -> None:
        if self._child is not None:
            self._read_reports(self._child)
            # A bad address stays bad: a new child would refuse it every ten seconds.
            if self._child.poll() not in {None, _BAD_ADDRESS}:
                self._child = None
        if self._child is None:
            self._earlier_counts.update(self._child_counts)
            self._child_counts = {"copied": 0, "failed": 0}
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            self._note_report()
        elif time.monotonic() - self._reported_seconds > self._silent_seconds:
            self._log_silence(silent=self._child.poll() is None)

    def _note_report(self) -> None:
        self._reported_seconds = time.monotonic()
        self._log_silence(silent=False)

    def _log_silence(self, *, silent: bool) -> None:
        if silent and not self._is_silent:
            _log.warning("archive=silent url=%s after_seconds=%s", self._url, self._silent_seconds)
        elif self._is_silent and not silent:
            _log.info("archive=answers url=%s", self._url)
        self._is_silent = silent

    def _read_reports(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        descriptor = child.stdout.fileno()
        while select.select([descriptor], [], [], 0)[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                break
            *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
            if lines:
                # The counts are totals, so the newest line is enough.
                self._child_counts = json.loads(lines[-1])
                self._note_report()


def _print_counts(counts: dict[str, int]) -> None:
    print(json.dumps(counts), flush=True)  # noqa: T201  # the agent reads it


def _main(url: str, *roots: str) -> None:
    import fsspec  # noqa: PLC0415  # only the child needs it

    os.nice(_NICE)
    try:
        files, target = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        print(f"lockstep agent: --archive {url}: {error}", file=sys.stderr)  # noqa: T201  # the child's log
        sys.exit(_BAD_ADDRESS)
    # The copier itself prints what is refused, with the job.
    logging.getLogger("lockstep_records").addHandler(logging.NullHandler())
    copier = Copier(tuple(map(Path, roots)), files, target, report=_print_counts)
    _print_counts(copier.counts)
    while True:
        copier.copy()
        _print_counts(copier.counts)
        # The end of the agent closes stdin, which ends the wait at once.
        if select.select([sys.stdin], [], [], _POLL_SECONDS)[0]:
            return


if __name__ == "__main__":
    _main(*sys.argv[1:])
