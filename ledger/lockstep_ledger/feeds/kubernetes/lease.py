"""Which of several feeds delivers: the one that holds a Lease of the server."""

import logging
import time
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from lockstep_ledger.feeds.kubernetes.objects import part_of, seconds_of, text_of
from lockstep_ledger.feeds.kubernetes.server import ApiServer, Failure, ServerError
from lockstep_records.text.printable import printable

_log = logging.getLogger(__name__)
RENEW_SECONDS = 2.0
_LEASE_SECONDS = 10
_ANNOTATION = "lockstep/delivered-until"
_PATH = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"


class Lease:
    """A Lease, and until when the holder before this one has delivered everything.

    A feed that comes back under the same ``identity`` goes on at once.
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
