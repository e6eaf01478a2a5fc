"""Structured logs: one JSON object a line with job, attempt, rank, step and trace ids."""

import json
import logging
import os
import sys
import time
import weakref
from collections.abc import Mapping
from typing import Any, TextIO

from lockstep.identity.rank_identity import identity_from
from lockstep_records.files.spans import trace_of
from lockstep_records.page.layout import SLOT
from lockstep_records.page.writer import PageWriter, RankIdentity

SWITCH = "LOCKSTEP_LOG_JSON"
_PRESENT, _STEP = SLOT.word("present"), SLOT.word("step")
_STEP_BIT = SLOT.presence["step"]
_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Weak, so that logging keeps no page of a monitor that is gone.
_pages: "weakref.WeakSet[PageWriter]" = weakref.WeakSet()


def follow(page: PageWriter) -> None:
    """Takes the step of later log lines from this page; ``lockstep.attach`` calls it."""
    _pages.clear()
    _pages.add(page)


def last_step(page: PageWriter) -> int | None:
    """The last step in a page; None before the first, and after the page is closed."""
    try:
        is_present = page.words[_PRESENT] & _STEP_BIT
        return page.signed[_STEP] if is_present else None
    except ValueError:  # the page is closed
        return None


class JsonFormatter(logging.Formatter):
    """Formats a record as JSON.

    Fields: time (UTC), level, logger, message, job_id, attempt, rank, node, trace_id, span_id (the
    rank's span); step, the last one completed, when there is one; exception; and the fields of
    ``extra``.
    """

    def __init__(self, identity: RankIdentity, environment: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        trace = trace_of(identity.job_id, environment)
        self._step: int | None = None
        self._identity = {
            "job_id": identity.job_id,
            "attempt": identity.attempt,
            "rank": identity.rank,
            "node": identity.node,
            "trace_id": trace.trace_id,
            "span_id": trace.span_id(identity.attempt, identity.rank),
        }

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; a value that JSON does not know is its ``str``."""
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._identity,
        }
        for page in _pages:
            self._step = self._step if (now := last_step(page)) is None else now
        if self._step is not None:
            fields["step"] = self._step
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        for name, value in vars(record).items():
            if name not in _ORDINARY and name not in fields:
                fields[name] = value
        return json.dumps(fields, default=str, ensure_ascii=False)


def json_logs(
    *,
    stream: TextIO | None = None,
    level: int = logging.INFO,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Makes the root logger write JSON lines; a second call has no further effect.

    Stream and level are those of a root logger without a handler yet. A ValueError names a variable
    of the environment.
    """
    root = logging.getLogger()
    # Handlers of the user's are kept, with their streams and levels: only the format changes.
    if not root.handlers:
        root.addHandler(logging.StreamHandler(stream or sys.stderr))
        root.setLevel(level)
    formatter = JsonFormatter(identity_from(environment), environment)
    for handler in root.handlers:
        handler.setFormatter(formatter)
