"""Follows the objects of a Kubernetes API server: a list, then its changes, without an end."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from lockstep_ledger.importers.kubernetes import ObjectKind, ObjectReader
from lockstep_records.events.event import Event
from lockstep_records.shared.token_files import TokenError, read_token

_log = logging.getLogger(__name__)
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LIST_LIMIT = 500
_WATCH_SECONDS = 300
_MIN_WAIT_SECONDS, _MAX_WAIT_SECONDS = 1.0, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiServer:
    """Where the API server is; the service account of the pod where left out.

    Attributes:
        token_file: read at each request, for the kubelet renews it.
    """

    url: str = "https://kubernetes.default.svc"
    token_file: Path | None = _ACCOUNT / "token"
    ca_file: Path | None = _ACCOUNT / "ca.crt"

    def client(self) -> httpx.Client:
        """A client that trusts the server's certificate authority.

        Raises:
            ValueError: a file is missing.
        """
        for file in (self.token_file, self.ca_file):
            if file is not None and not file.is_file():
                raise ValueError(f"{file} is missing; run in a pod, or name --api-url and files")
        verify: Any = True
        if self.ca_file is not None and self.url.startswith("https://"):
            import ssl  # noqa: PLC0415  # only for a private authority

            verify = ssl.create_default_context(cafile=str(self.ca_file))
        timeout = httpx.Timeout(30.0, read=_WATCH_SECONDS + 30.0)
        return httpx.Client(base_url=self.url, verify=verify, timeout=timeout)

    def headers(self) -> dict[str, str]:
        """Headers of a request."""
        if self.token_file is None:
            return {}
        return {"Authorization": f"Bearer {read_token(self.token_file)}"}


class GoneError(Exception):
    """The version from which the watch was to go on is too old: the list has to be read again."""


class KubernetesWatch:
    """Events of all objects of one kind.

    Args:
        server: the API server.
        client: for it.
        kind: of the objects.
        reader: turns objects into events.
        clock: wall clock, seconds since 1970.
        sleep: waits before the server is asked again.
    """

    def __init__(
        self,
        server: ApiServer,
        client: httpx.Client,
        kind: ObjectKind,
        reader: ObjectReader,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._server, self._client, self._kind, self._reader = server, client, kind, reader
        self._clock, self._sleep = clock, sleep
        self._version: str | None = None

    def follow(self) -> Iterator[Event]:
        """Events without an end; returns where the cluster does not know the kind.

        Raises:
            ValueError: the server refuses to answer; the text names status and kind.
        """
        wait_seconds = 0.0
        while True:
            try:
                if self._version is None:
                    yield from self._list()
                yield from self._watch()
                wait_seconds = 0.0
            except GoneError:
                self._version = None
            except (httpx.HTTPError, OSError, TokenError) as error:
                if isinstance(error, httpx.HTTPStatusError) and not _may_recover(error):
                    if error.response.status_code == HTTPStatus.NOT_FOUND:
                        _log.info("kubernetes=unknown kind=%s", self._kind.kind)
                        return
                    raise ValueError(
                        f"the API server answers {error.response.status_code} for"
                        f" {self._kind.path}; grant list and watch to the account"
                    ) from error
                wait_seconds = min(max(2 * wait_seconds, _MIN_WAIT_SECONDS), _MAX_WAIT_SECONDS)
                _log.warning("kubernetes=away kind=%s reason=%r", self._kind.kind, str(error))
                self._sleep(wait_seconds)

    def _list(self) -> Iterator[Event]:
        """Events of the objects that are there, page by page."""
        position = ""
        while True:
            parameters: dict[str, str | int] = {"limit": _LIST_LIMIT}
            if position:
                parameters["continue"] = position
            answer = self._client.get(
                self._kind.path, params=parameters, headers=self._server.headers()
            )
            if answer.status_code == HTTPStatus.GONE:
                raise GoneError
            answer.raise_for_status()
            document = answer.json()
            for item in document.get("items", ()):
                yield from self._reader.events(self._named(item), self._clock())
            meta = document.get("metadata", {})
            position = meta.get("continue", "")
            if not position:
                self._version = str(meta.get("resourceVersion", ""))
                return

    def _watch(self) -> Iterator[Event]:
        """Events of the changes since the list; ends when the server closes the answer."""
        parameters = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version or "",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        request = self._client.stream(
            "GET", self._kind.path, params=parameters, headers=self._server.headers()
        )
        with request as answer:
            if answer.status_code == HTTPStatus.GONE:
                raise GoneError
            answer.raise_for_status()
            for line in answer.iter_lines():
                if line.strip():
                    yield from self._change(json.loads(line))

    def _change(self, change: Mapping[str, Any]) -> Iterator[Event]:
        kind, document = change.get("type"), change.get("object") or {}
        if kind == "ERROR":
            if document.get("code") == HTTPStatus.GONE:
                raise GoneError
            raise OSError(str(document.get("message", "the watch failed")))
        version = document.get("metadata", {}).get("resourceVersion")
        if kind in {"ADDED", "MODIFIED"}:
            yield from self._reader.events(self._named(document), self._clock())
        elif kind == "DELETED":
            yield from self._reader.deleted(self._named(document), self._clock())
        # Only after its events: a consumer that stops here sees the object again.
        if version is not None:
            self._version = str(version)

    def _named(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The object with its kind, which the items of a list do not repeat."""
        return {"kind": self._kind.kind, **document}


def _may_recover(error: httpx.HTTPStatusError) -> bool:
    status = error.response.status_code
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR
