"""Tokens and what each may do: its scope, its clusters, its projects, and for whom it writes."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep_ledger.ingest.document import DeliveryError
from lockstep_ledger.ingest.speakers import Scope, Speaker
from lockstep_records.events.bounds import is_printable
from lockstep_records.file_access.token_files import TokenLine, read_token_lines

WRITER_SCOPES = ("agent", "launcher", "scheduler")
EVERY_NODE = "*"
"""Of a token that the agents of a fleet share: whoever has it speaks for every node."""
_WORDS = ("scope", "clusters", "projects", "owner", "node")
_MAX_OWNER = 2**32 - 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """What a token may do; without any scope everything that its file grants.

    Attributes:
        scope: one of ``WRITER_SCOPES``, ``reader``, or empty for any writer.
        owner: user id that is stamped on every event of a launcher.
        node: of an agent, the only one; every one with ``*``, the first it speaks of where empty.
        taken: nodes that other tokens have for themselves.
    """

    scope: str = ""
    clusters: frozenset[str] | None = None
    projects: frozenset[str] | None = None
    owner: int | None = None
    node: str = ""
    name: str = field(default="", compare=False)
    taken: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def limits(self) -> dict[str, frozenset[str]]:
        """Allowed values by column of a job; empty where everything is allowed."""
        limits = {"cluster": self.clusters, "project": self.projects}
        return {name: values for name, values in limits.items() if values is not None}

    def speaker(self, cluster: str, node: str) -> Speaker:
        """Who speaks with this token of a cluster and a node; DeliveryError for another's node."""
        scope: Scope = self.scope or "operator"  # type: ignore[assignment]  # of WRITER_SCOPES
        if node != self.node and (self.node or node in self.taken) and self.node != EVERY_NODE:
            whose = f"this token is of {self.node!r}" if self.node else "it has a token of its own"
            raise DeliveryError("scope", f"node {node!r:.80} is not this speaker's: {whose}")
        return Speaker(
            scope=scope, cluster=cluster, node=node, uid=self.owner, token=self.name,
            is_pinned=scope == "agent" and not self.node,
            clusters=self.clusters, projects=self.projects,
        )  # fmt: skip


class Tokens:
    """Grants by token; without any token everybody may do everything."""

    def __init__(self, grants: Mapping[str, Grant]) -> None:
        # Found by digest: how long a search takes tells nothing about the token.
        nodes = frozenset(grant.node for grant in grants.values() if grant.scope == "agent")
        self._grants = {
            (digest := _digest(token.encode())): replace(
                grant,
                name=digest.hex()[:12],
                taken=nodes if grant.scope == "agent" else frozenset(),
            )
            for token, grant in grants.items()
        }

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
    """The tokens of a file for these scopes, none without a file; a ValueError has the line."""
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
        if name not in _WORDS:
            raise ValueError(f"word {word[:80]!r} is unknown; give one of {'=, '.join(_WORDS)}=")
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
        node=_read_node(words.get("node"), scope),
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


def _read_node(name: str | None, scope: str) -> str:
    if name is None:
        return ""
    if scope != "agent" or not name or not is_printable(name):
        raise ValueError(f"node {name[:80]!r} must be the name of the node of a scope=agent, or *")
    return name
