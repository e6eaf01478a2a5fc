"""The end of a job in one line, by the fields of its last event: the same words everywhere."""

import re
from collections.abc import Mapping
from typing import Any

from lockstep_outcomes.progress.missing import rank_words

_MAX_EXCEPTION_CHARACTERS = 200
_OUT_OF_MEMORY = frozenset({"gpu_oom", "host_oom"})
_RAISED = frozenset({"exception", "data_error"})
_ENDS = {
    "succeeded": "The job succeeded",
    "failed": "The job failed",
    "cancelled": "The job was cancelled",
    "preempted": "The job was preempted",
    "time_limit": "The job ran into its time limit",
    "not_converged": "The job did not converge",
}
# Their reasons tell the step, and who waited.
_CAUSES_WITH_STEPS = frozenset({"hang", "uneven_end"})
# A path in the place of an exception: its last part says enough in one line.
_FOLDERS = re.compile(r"\((?:[^()\s]*/)+([^/()\s]+:\d+, in [^()]*)\)$")


def first_line(fields: Mapping[str, Any]) -> str:
    """What became of a job by its last event: who was to blame, at which step, who followed."""
    outcome, cause = fields.get("outcome"), fields.get("cause")
    end = _ENDS.get(str(outcome), "The job ended")
    if outcome == "failed" and cause == "hang":
        end = "The job hung"
    elif outcome == "failed" and cause in _OUT_OF_MEMORY:
        end = "The job ran out of memory"
    why = _why(fields)
    line = f"{end}: {why}" if why else end
    if outcome != "succeeded" and cause not in _CAUSES_WITH_STEPS:
        line += _last_step_phrase(fields) + _followed(fields)
    return f"{line}."


def _why(fields: Mapping[str, Any]) -> str:
    """The reason as a part of a sentence, with the exception where one is known."""
    exception, ranks = fields.get("exception"), _ranks(fields, "cause_ranks")
    if isinstance(exception, str) and exception and fields.get("cause") in _RAISED:
        named = rank_words(ranks) if ranks else "most ranks"
        text = _FOLDERS.sub(r"(\1)", exception)
        return f"{named} raised {_short(text)}"
    reason = fields.get("reason")
    if not isinstance(reason, str) or not reason:
        return ""
    reason = reason.removeprefix("It hung: ").rstrip(".")
    is_word = reason.split(" ", 1)[0][1:].islower()
    return (reason[:1].lower() if is_word else reason[:1]) + reason[1:]


def _short(text: str) -> str:
    if len(text) <= _MAX_EXCEPTION_CHARACTERS:
        return text
    return text[: _MAX_EXCEPTION_CHARACTERS - 3] + "..."


def _last_step_phrase(fields: Mapping[str, Any]) -> str:
    step = fields.get("last_step")
    is_known = isinstance(step, int) and not isinstance(step, bool)
    return f", after step {step}" if is_known else ""


def _followed(fields: Mapping[str, Any]) -> str:
    ranks = _ranks(fields, "followers")
    return f"; {rank_words(ranks)} followed" if ranks else ""


def _ranks(fields: Mapping[str, Any], name: str) -> list[int]:
    values = fields.get(name)
    if not isinstance(values, list):
        return []
    return [rank for rank in values if isinstance(rank, int) and not isinstance(rank, bool)]
