"""The API server by the client of the Kubernetes project: from a pod, or by a kubeconfig."""

import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import urllib3
import yaml
from kubernetes import client, config
from kubernetes.watch.watch import iter_resp_lines

from lockstep_records.text.printable import printable

_log = logging.getLogger(__name__)
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 30.0
_CONNECTIONS = 64  # a watch of each kind holds one
_BEHIND_SECONDS, _AHEAD_SECONDS = 1.5, 0.5
Failure = (
    client.ApiException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError,
    msgspec.DecodeError,
)  # fmt: skip
"""What the way to the server raises."""
_decode = msgspec.json.Decoder().decode
# The client has no types of its own here.
_load_account: Callable[..., None] = config.load_incluster_config
_load_file: Callable[..., None] = config.load_kube_config
_read_lines: Callable[[Any], Iterator[str]] = iter_resp_lines


class ServerError(Exception):
    """The server refused."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ServerClock:
    """The server's wall clock, by the whole seconds in the `Date` of its answers."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._offset: float | None = None

    def note(self, date: str) -> None:
        """Learn from the header of an answer that has just come."""
        try:
            least = parsedate_to_datetime(date).timestamp() - self._clock()
        except (TypeError, ValueError):
            return
        # The server's clock is less than a second past its Date: the greatest bound holds.
        if self._offset is None or not self._offset - 3.0 < least < self._offset:
            self._offset = least

    def now(self) -> float:
        """Seconds since 1970."""
        offset = self._offset or 0.0
        # Two clocks that may agree do.
        return self._clock() + (0.0 if -_BEHIND_SECONDS < offset < _AHEAD_SECONDS else offset)


class ApiServer:
    """Requests to the server by a kubeconfig, or by the pod's account without one; or ValueError.

    A token that was renewed is read again from its file when the server refuses the one before.
    """

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._lock, self._loaded = threading.Lock(), 0.0
        self.clock = ServerClock()
        self._api = self._load()

    def _load(self) -> client.ApiClient:
        found = client.Configuration()
        try:
            is_in_pod = Path(config.incluster_config.SERVICE_TOKEN_FILENAME).exists()
            if self._kubeconfig is None and self._context is None and is_in_pod:
                _load_account(client_configuration=found)
            else:
                file = None if self._kubeconfig is None else str(self._kubeconfig)
                _load_file(file, context=self._context, client_configuration=found)
        except (
            config.ConfigException,
            yaml.YAMLError,
            OSError,
            ValueError,
            TypeError,
            KeyError,
        ) as error:
            source = self._kubeconfig or "the kubeconfig or the pod's account"
            text = printable(str(error), 300)
            raise ValueError(f"{source} cannot be used: {text}; give --kubeconfig") from error
        found.connection_pool_maxsize, found.retries = _CONNECTIONS, False
        self._loaded = time.monotonic()
        return client.ApiClient(found)

    def _renew(self, used: client.ApiClient) -> None:
        with self._lock:
            if self._api is used and time.monotonic() - self._loaded > 1.0:
                try:
                    self._api = self._load()
                except ValueError as error:
                    _log.warning("kubernetes=credentials reason=%r", str(error))

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        *,
        body: Any = None,
        accept: str = "application/json",
        seconds: float = _READ_SECONDS,
    ) -> urllib3.HTTPResponse:
        api = self._api
        request = api.param_serialize(
            method,
            path,
            query_params=[(name, str(value)) for name, value in query.items()],
            header_params={"Accept": accept, "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        timeouts = (_CONNECT_SECONDS, seconds)
        answer: urllib3.HTTPResponse = api.call_api(*request, _request_timeout=timeouts).response
        self.clock.note(answer.headers.get("Date", ""))
        if answer.status >= HTTPStatus.BAD_REQUEST:
            if answer.status == HTTPStatus.UNAUTHORIZED:
                self._renew(api)
            text = answer.read(2000).decode(errors="replace")
            answer.release_conn()
            raise ServerError(answer.status, f"{answer.status} {_message_of(text)}")
        return answer

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        accept: str = "application/json",
    ) -> Any:
        """The answer's JSON; ServerError for a refusal, or one of ``Failure``."""
        answer = self._open(method, path, query or {}, body=body, accept=accept)
        try:
            return _decode(answer.read())
        finally:
            answer.release_conn()

    def watch(self, path: str, query: Mapping[str, Any], seconds: float) -> Iterator[Any]:
        """The changes that a watch delivers, until the server closes it; raises as ``send``."""
        answer = self._open("GET", path, query, seconds=seconds)
        try:
            for line in _read_lines(answer):
                if line:
                    yield _decode(line)
        finally:
            answer.close()


def _message_of(text: str) -> str:
    try:
        found = _decode(text)
    except msgspec.DecodeError:
        return text[:200]
    return str(found.get("message", ""))[:500] if isinstance(found, dict) else ""
