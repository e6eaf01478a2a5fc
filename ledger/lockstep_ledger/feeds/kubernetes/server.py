"""The API server by the client of the Kubernetes project, and the Lease of who delivers."""

import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import urllib3
import yaml
from kubernetes import client, config
from kubernetes.watch.watch import iter_resp_lines

from lockstep_ledger.feeds.kubernetes.objects import part_of, seconds_of, text_of
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
    """The server's wall clock, by the `Date` of its answers, which has whole seconds.

    Args:
        clock: the feed's own, seconds since 1970.
    """

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
    """Requests to the server.

    A token that was renewed is read again from its file when the server refuses the one before.

    Args:
        kubeconfig, context: as `kubectl` takes them; the account of the pod where both are None.

    Raises:
        ValueError: neither can be used; the text says why.
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
        """The answer's JSON.

        Raises:
            ServerError: a refusal; or one of ``Failure``.
        """
        answer = self._open(method, path, query or {}, body=body, accept=accept)
        try:
            return _decode(answer.read())
        finally:
            answer.release_conn()

    def watch(self, path: str, query: Mapping[str, Any], seconds: float) -> Iterator[Any]:
        """The changes that a watch delivers, until the server closes it.

        Raises:
            ServerError: a refusal; or one of ``Failure``.
        """
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


RENEW_SECONDS = 2.0
_LEASE_SECONDS = 10
_ANNOTATION = "lockstep/delivered-until"
_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class Lease:
    """A Lease, and until when its holder has delivered everything.

    Args:
        namespace, name: of it.
        identity: of this feed; a feed that comes back under the same goes on at once.

    Attributes:
        delivered_until: by the holder before this one; None where there was none.
    """

    def __init__(self, server: ApiServer, namespace: str, name: str, identity: str) -> None:
        self.delivered_until: float | None = None
        self._server, self._identity, self._name = server, identity, name
        self._path = _PATH.format(namespace)
        self._is_usable, self._was_held, self._complaint = True, False, ""
        self._seen: tuple[str, float] = ("", 0.0)

    def hold(self, delivered_until: float | None) -> bool:
        """Take it or renew it; whether this feed holds it.

        While the server does not answer, its holder stays what it was: nobody else can take it.
        """
        try:
            held = self._hold(delivered_until) if self._is_usable else True
        except ServerError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                _log.warning("lease=forbidden reason=%r", printable(str(error), 300))
                self._is_usable = False  # one feed works without it
                return True
            if error.status == HTTPStatus.CONFLICT:
                return False  # another feed was quicker
            return self._complain(error)
        except Failure as error:
            return self._complain(error)
        self._was_held, self._complaint = held, ""
        return held

    def _complain(self, error: Exception) -> bool:
        """Log that the server does not answer, once until it does; who holds it stays the same."""
        if not self._complaint:
            self._complaint = printable(str(error), 300)
            _log.warning("kubernetes=away reason=%r", self._complaint)
        return self._was_held

    def release(self, delivered_until: float) -> None:
        """Let another feed take it at once."""
        if self._was_held and self._is_usable:
            try:
                self._write(
                    self._server.send("GET", f"{self._path}/{self._name}"), "", delivered_until
                )
            except (ServerError, *Failure):
                _log.info("lease=kept")

    def _hold(self, delivered_until: float | None) -> bool:
        try:
            lease = self._server.send("GET", f"{self._path}/{self._name}")
        except ServerError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            lease = {"metadata": {"name": self._name}}
        holder = text_of(part_of(lease, "spec").get("holderIdentity"))
        if holder not in {"", self._identity} and self._is_fresh(lease):
            return False
        if not self._was_held:
            stated = text_of(part_of(lease, "metadata", "annotations").get(_ANNOTATION))
            self.delivered_until = seconds_of(stated)
        self._write(lease, self._identity, delivered_until)
        return True

    def _is_fresh(self, lease: Any) -> bool:
        """Whether its holder has renewed it, by this feed's own sense of time."""
        renewed = text_of(part_of(lease, "spec").get("renewTime"))
        if renewed != self._seen[0]:
            self._seen = (renewed, time.monotonic())
        return time.monotonic() - self._seen[1] < _LEASE_SECONDS

    def _write(self, lease: Any, holder: str, delivered_until: float | None) -> None:
        meta, spec = dict(lease["metadata"]), dict(part_of(lease, "spec"))
        if delivered_until is not None:
            meta["annotations"] = {
                **part_of(meta, "annotations"), _ANNOTATION: _format(delivered_until),
            }  # fmt: skip
        if spec.get("holderIdentity") != holder:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = _format(self._server.clock.now())
        spec |= {
            "holderIdentity": holder, "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": _format(self._server.clock.now()),
        }  # fmt: skip
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": spec,
        }
        if "resourceVersion" in meta:
            self._server.send("PUT", f"{self._path}/{self._name}", body=body)
        else:
            self._server.send("POST", self._path, body=body)


def _format(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
