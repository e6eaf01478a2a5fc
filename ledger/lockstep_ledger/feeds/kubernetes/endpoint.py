"""The feed's own metrics, over HTTP."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lockstep_catalogue import Endpoint, Metric, feeds, metrics_of
from lockstep_ledger.feeds.kubernetes.feed import Feed
from lockstep_records.shared.scrape_text import TEXT_TYPE, write_head, write_number, write_stem

Sample = tuple[Metric, tuple[str, ...], float]


def samples_of(feed: Feed) -> Iterator[Sample]:
    """The series of a feed."""
    states = dict.fromkeys(feeds.FOLLOWING.values, 0)
    for (kind, namespace), follower in list(feed.followers.items()):
        states[follower.state] += 1
        if namespace in {"", *feed.options.namespaces[:1]}:
            yield feeds.CONTACT, (kind,), follower.contact
            yield feeds.LISTED, (kind,), follower.listed
            yield feeds.CHANGED, (kind,), follower.changed
            yield feeds.LISTS, (kind,), follower.lists
    for state, number in states.items():
        yield feeds.KINDS, (state,), number
    yield feeds.EVENTS, ("delivered",), feed.delivery.delivered
    yield feeds.EVENTS, ("refused",), feed.delivery.refused
    yield feeds.WAITING, (), feed.delivery.waiting
    yield feeds.DELIVERED_UNTIL, (), feed.evaluated_until
    yield feeds.LEFT_OUT, (), feed.world.left_out
    yield feeds.UNREADABLE, (), feed.world.refused


def write_scrape(feed: Feed | None, cluster: str) -> str:
    """The text of a scrape; a feed that waits for its Lease has no series but the families."""
    by_metric: dict[Metric, list[str]] = {metric: [] for metric in metrics_of(Endpoint.FEED)}
    for metric, values, number in samples_of(feed) if feed is not None else ():
        labels = dict(zip(metric.label_names, (cluster, *values), strict=True))
        by_metric[metric].append(f"{write_stem(metric.name, labels)} {write_number(number)}")
    lines = [
        line
        for metric, found in by_metric.items()
        for line in (write_head(metric, is_openmetrics=False), *found)
    ]
    return "\n".join(lines) + "\n"


def serve_metrics(address: tuple[str, int], scrape: Callable[[], str]) -> int:
    """Serve /metrics in a thread; the port.

    Raises:
        ValueError: the address cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:  # name of the base class
            is_there = self.path.partition("?")[0] in {"/metrics", "/healthz"}
            body = scrape().encode() if is_there else b""
            self.send_response(200 if is_there else 404)
            self.send_header("Content-Type", TEXT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log no scrape."""

    try:
        server = ThreadingHTTPServer(address, Handler)
    except OSError as error:
        raise ValueError(
            f"--metrics-listen {address[0]}:{address[1]} cannot be used: {error}"
        ) from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_address[1])
