"""Tokens and what each may do: its scope, its clusters, its projects, and for whom it writes."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep_records.events.bounds import is_printable
from lockstep_records.events.event import Event
from lockstep_records.events.kinds import EDGE_KINDS
from lockstep_records.file_access.token_files import TokenLine, read_token_lines

WRITER_SCOPES = ("agent", "launcher", "scheduler")
_MAX_OWNER = 2**32 - 2
_DESCRIBING = frozenset({"job_submitted", "job_started"})
_SCHEDULER_KINDS = frozenset(
    {"job_submitted", "job_preempted", "job_requeued", "resources_allocated", "resources_released"}
)
_REFUSED_KINDS = {"agent": _SCHEDULER_KINDS, "launcher": _SCHEDULER_KINDS | {"node_event"}}
_SCHEDULER_KINDS = EDGE_KINDS | {"node_event"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What a token may do; without any scope everything that its file grants.

    Attributes:
        scope: one of ``WRITER_SCOPES``, ``reader``, or empty for any writer.
        clusters, projects: the only ones; all where None.
        owner: user id that is stamped on every event of a launcher.
    """

    scope: str = ""
    clusters: frozenset[str] | None = None
    projects: frozenset[str] | None = None
    owner: int | None = None

    @property
    def limits(self) -> dict[str, frozenset[str]]:
        """Allowed values by column of a job; empty where everything is allowed."""
        limits = {"cluster": self.clusters, "project": self.projects}
        return {name: values for name, values in limits.items() if values is not None}

    def objection(self, event: Event) -> str:
        """Why the token may not send an event, one sentence; empty where it may."""
        is_kind_allowed = event.kind not in _REFUSED_KINDS.get(self.scope, frozenset()) and (
            self.scope != "scheduler" or event.kind in _SCHEDULER_KINDS
        )
        if not is_kind_allowed:
            return f"kind {event.kind!r:.80} is not sent by a token of scope {self.scope}"
        if self.clusters is not None and event.cluster not in self.clusters:
            return f"cluster {event.cluster!r} is not one of this token's"
        if self.projects is not None and event.kind in _DESCRIBING:
            project = event.text("project")
            if project not in self.projects:
                return f"project {project!r} is not one of this token's"
        return ""

    def stamped(self, event: Event) -> Event:
        """The event with the owner that this token vouches for; only agents see a folder's."""
        if self.scope in {"", "agent"} or event.owner == self.owner:
            return event
        return replace(event, owner=self.owner)


class Tokens:
    """Grants by token; without any token everybody may do everything."""

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        # Found by digest: how long a search takes tells nothing about the token.
        self._grants = {_digest(token.encode()): grant for token, grant in grants.items()}

    def grant(self, authorization: str) -> Grant | None:
        """What a header ``Authorization`` permits, as bearer or as password; None for nothing."""
        if not self._grants:
            return Grant()
        return self._grants.get(_digest(_token(authorization)))

    def digest(self, authorization: str) -> bytes:
        """The digest of an accepted token; empty for every other."""
        digest = _digest(_token(authorization))
        return digest if digest in self._grants else b""


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _token(authorization: str) -> bytes:
    """The token of a header, empty without one; browsers send it as the password of any user."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip().encode()
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def read_tokens(path: Path | None, scopes: tuple[str, ...]) -> Tokens:
    """The tokens of a file for these scopes; none without a file.

    Raises:
        ValueError: one sentence on what is wrong with it, with the number of the line.
    """
    grants: dict[str, Grant] = {}
    for line in read_token_lines(path) if path else ():
        try:
            grant = _read_grant(line, scopes)
        except ValueError as error:
            raise ValueError(f"{path} line {line.number}: {error}") from error
        if line.token in grants:
            raise ValueError(f"{path} line {line.number}: the token was given before; keep one")
        grants[line.token] = grant
    return Tokens(grants)


def _read_grant(line: TokenLine, scopes: tuple[str, ...]) -> Grant:
    words: dict[str, str] = {}
    for word in line.words:
        name, _, value = word.partition("=")
        if name not in {"scope", "clusters", "projects", "owner"}:
            raise ValueError(
                f"word {word[:80]!r} is unknown; give scope=, clusters=, projects= or owner="
            )
        if name in words:
            raise ValueError(f"{name} is given twice; give it once")
        words[name] = value
    scope = words.get("scope", "")
    if "scope" in words and scope not in scopes:
        raise ValueError(f"scope {scope[:80]!r} does not belong here; give {' or '.join(scopes)}")
    return Grant(
        scope=scope,
        clusters=_read_names(words, "clusters"),
        projects=_read_names(words, "projects"),
        owner=_read_owner(words.get("owner"), scope),
    )


def _read_names(words: Mapping[str, str], name: str) -> frozenset[str] | None:
    if name not in words:
        return None
    names = words[name].split(",")
    if not all(part and is_printable(part) for part in names):
        raise ValueError(f"{name} {words[name][:80]!r} must be names with commas between, as a,b")
    return frozenset(names)


def _read_owner(text: str | None, scope: str) -> int | None:
    if text is None:
        return None
    if scope != "launcher":
        raise ValueError("owner belongs to a token of scope=launcher; leave it out")
    if not text.isdigit() or len(text) > len(str(_MAX_OWNER)) or int(text) > _MAX_OWNER:
        raise ValueError(f"owner {text[:80]!r} must be a user id, 0 to {_MAX_OWNER}")
    return int(text)
