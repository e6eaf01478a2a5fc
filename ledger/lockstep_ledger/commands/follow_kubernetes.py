"""Follow Kubernetes: jobs by their pods, from a pod or from a laptop."""

import platform
import signal
import threading
from pathlib import Path

import click

from lockstep_ledger.commands.follow_options import follow_options
from lockstep_ledger.feeds.kubernetes.endpoint import serve_metrics, write_scrape
from lockstep_ledger.feeds.kubernetes.feed import Feed, FeedOptions
from lockstep_ledger.feeds.kubernetes.filters import read_selector
from lockstep_ledger.feeds.kubernetes.lease import RENEW_SECONDS, Lease
from lockstep_ledger.feeds.kubernetes.ledger_client import LedgerClient
from lockstep_ledger.feeds.kubernetes.server import ApiServer
from lockstep_ledger.options import FILE
from lockstep_records.shared.options import read_address

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@click.command("kubernetes")
@follow_options
@click.option("--reader-token-file", type=FILE, help="File whose first line is a reader's token.")
@click.option("--kubeconfig", type=FILE, help="As kubectl takes it; the pod's account by default.")
@click.option("--context", help="Context of the kubeconfig; its current one by default.")
@click.option("--namespace", "namespaces", multiple=True, help="Follow this one alone; repeatable.")
@click.option("--selector", default="", help="Labels of jobs to be taken: NAME=VALUE,NAME.")
@click.option("--lease", help="NAMESPACE/NAME of the Lease that says which of two feeds delivers.")
@click.option("--identity", default=platform.node(), help="Name of this feed in the Lease.",
              show_default="the host's name")  # fmt: skip
@click.option("--metrics-listen", metavar="HOST:PORT", help="Address of its own metrics.")
def follow_kubernetes(
    *,
    url: str,
    token_file: Path | None,
    cluster: str,
    reader_token_file: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    namespaces: tuple[str, ...],
    selector: str,
    lease: str | None,
    identity: str,
    metrics_listen: str | None,
) -> None:
    """Deliver what Kubernetes knows of its jobs to a ledger, until interrupted.

    One feed a cluster delivers; another one waits for the Lease.
    """
    try:
        options = FeedOptions(cluster, namespaces, read_selector(selector))
        server = ApiServer(kubeconfig, context)
        lease_name = _read_lease_name(lease)
        ledger = LedgerClient(url, cluster, token_file, reader_token_file)
        terms = _Terms(cluster)
        if metrics_listen is not None:
            serve_metrics(read_address(metrics_listen), terms.scrape)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: terms.end())
    while not terms.ending.is_set():
        held = Lease(server, *lease_name, identity)
        while not held.hold(None):
            if terms.ending.wait(RENEW_SECONDS):
                return
        terms.current = Feed(server, ledger, held, options)
        terms.current.run()
        terms.current = None


class _Terms:
    """The term that is served now; None while another feed holds the Lease."""

    def __init__(self, cluster: str) -> None:
        self._cluster, self.ending = cluster, threading.Event()
        self.current: Feed | None = None

    def end(self) -> None:
        self.ending.set()
        if self.current is not None:
            self.current.end()

    def scrape(self) -> str:
        return write_scrape(self.current, self._cluster)


def _read_lease_name(lease: str | None) -> tuple[str, str]:
    """Namespace and name of the Lease."""
    if lease is None:
        is_in_pod = _NAMESPACE_FILE.is_file()
        namespace = _NAMESPACE_FILE.read_text(encoding="utf-8").strip() if is_in_pod else "default"
        return namespace, "lockstep-ledger-feed"
    namespace, _, name = lease.partition("/")
    if not namespace or not name:
        raise ValueError(f"--lease {lease!r:.100} must be NAMESPACE/NAME")
    return namespace, name
