"""Follow Kubernetes: jobs by their pods, from a pod or from a laptop."""

import platform
import re
import signal
import threading
from pathlib import Path

import click

from lockstep_cli.options import bad_input
from lockstep_ledger.feeds.kubernetes.delivery import LedgerClient
from lockstep_ledger.feeds.kubernetes.feed import RENEW_SECONDS, Feed, Lease
from lockstep_ledger.feeds.kubernetes.server import ApiServer
from lockstep_ledger.options import FILE, follow_options

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
) -> None:
    """Deliver what Kubernetes knows of its jobs to a ledger, until interrupted.

    One feed a cluster delivers; another one waits for the Lease.
    """
    with bad_input():
        labels = _read_selector(selector)
        server = ApiServer(kubeconfig, context)
        lease_name = _read_lease_name(lease)
        ledger = LedgerClient(url, cluster, token_file, reader_token_file)
    click.echo(f"{identity} follows the cluster {cluster}", err=True)
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    while not ending.is_set():
        held = Lease(server, *lease_name, identity)
        while not held.hold(None):
            if ending.wait(RENEW_SECONDS):
                return
        Feed(server, ledger, held, ending, namespaces=namespaces, selector=labels).run()


def _read_selector(text: str) -> dict[str, str | None]:
    """Labels of NAME=VALUE or NAME, several with commas; of None any value will do."""
    labels: dict[str, str | None] = {}
    for word in filter(None, text.split(",")):
        name, sign, value = word.partition("=")
        if not name or not re.fullmatch(r"[\w./-]+", name) or value.startswith("="):
            raise ValueError(
                f"--selector {text!r:.100} must be NAME=VALUE or NAME, with commas between"
            )
        labels[name] = value if sign else None
    return labels


def _read_lease_name(lease: str | None) -> tuple[str, str]:
    if lease is None:
        is_in_pod = _NAMESPACE_FILE.is_file()
        namespace = _NAMESPACE_FILE.read_text(encoding="utf-8").strip() if is_in_pod else "default"
        return namespace, "lockstep-ledger-feed"
    namespace, _, name = lease.partition("/")
    if not namespace or not name:
        raise ValueError(f"--lease {lease!r:.100} must be NAMESPACE/NAME")
    return namespace, name
