"""The running agent: collectors, sampler and server, until a signal ends it."""

import gc
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click

from lockstep_agent.exposition.series_budget import SeriesBudget
from lockstep_agent.exposition.text import Renderer
from lockstep_agent.health.judge import Judge
from lockstep_agent.options import Options
from lockstep_agent.runtime.collector_runtime import CollectorRuntime
from lockstep_agent.runtime.sampler import Sampler
from lockstep_agent.state_file import lock_state
from lockstep_agent.web.access_control import AccessControl
from lockstep_agent.web.server import MetricsServer, NodeChannel
from lockstep_catalogue.series_budget import MAX_SERIES
from lockstep_cli.options import bad_input
from lockstep_cli.signals import until_signal

_log = logging.getLogger(__name__)
_BETWEEN_SAMPLES_SECONDS = 0.2
_POLL_SECONDS = 2.0  # how often connections are checked for their time-out
_ALLOCATIONS_BETWEEN_COLLECTIONS = 20_000


def print_once(options: Options) -> None:
    """Writes one scrape to stdout; NCCL's sockets are asked by an agent that stays."""
    _log_to_stderr()
    runtime = CollectorRuntime(replace(options, without=(*options.without, "ras")))
    sampler = _sampler(runtime, options)
    sampler.sample()
    # Activity is measured between two samples.
    time.sleep(min(options.tick, _BETWEEN_SAMPLES_SECONDS))
    click.echo(sampler.sample().text, nl=False)


def serve(options: Options) -> None:
    """Serves until SIGTERM or SIGINT; releases the driver from SIGUSR1 until SIGUSR2.

    Raises:
        click.UsageError: the address cannot be listened on, a file of web access is wrong, or
            another agent has the folder of state.
    """
    with until_signal():
        _serve(options)


def _serve(options: Options) -> None:
    _log_to_stderr()
    with bad_input():
        access_control = AccessControl(options.web_config, options.bearer_token_file)
        _check_access(options.host, access_control)
        state_lock = lock_state(options.state)
    runtime = CollectorRuntime(options)
    signal.signal(signal.SIGUSR1, lambda *_: runtime.gpus.release())
    signal.signal(signal.SIGUSR2, lambda *_: runtime.gpus.resume())
    sampler = _sampler(runtime, options)
    # Bound before the first sample: a busy port is refused before any driver is opened.
    try:
        server = MetricsServer(
            options.host,
            options.port,
            sampler,
            node=options.node,
            access_control=access_control,
            events=lambda: runtime.events_json,
        )
    except OSError as error:
        raise click.UsageError(
            f"cannot bind --listen {options.host}:{options.port} ({error.strerror}); "
            "choose another address, or port 0 for any free one"
        ) from error
    _open_channel(options.state, server)
    sampler.start(on_end=server.shutdown)
    _tune_garbage_collector()
    click.echo(f"serving {server.url}", err=True)
    with state_lock or nullcontext():
        server.serve_forever(_POLL_SECONDS)
        # A process without a sampler serves nothing: whoever supervises it starts it again.
        raise click.ClickException(f"sampling has ended: {sampler.failure}")


def _open_channel(folder: Path | None, server: MetricsServer) -> None:
    """Answers root's scripts at a socket where there is a folder of state."""
    if folder is None or not folder.is_dir():
        return
    try:
        channel = NodeChannel(folder, server.pages)
    except OSError as error:
        _log.warning("socket=%s cannot be opened: %s", folder, error)
        return
    threading.Thread(target=channel.serve_forever, args=(_POLL_SECONDS,), daemon=True).start()


def _sampler(runtime: CollectorRuntime, options: Options) -> Sampler:
    renderer = renderer_of(options, runtime.owner_of)
    return Sampler(runtime, options.tick, judge=Judge(options.expected), renderer=renderer)


def _check_access(host: str, access_control: AccessControl) -> None:
    """Refuses an address that the network reaches and that asks for no credentials.

    Raises:
        ValueError: one sentence with the remedies.
    """
    is_loopback = host in {"localhost", "::1"} or host.startswith("127.")
    if not is_loopback and not access_control.has_credentials:
        raise ValueError(
            f"--listen {host} is open to the network: give --bearer-token-file, or --web-config "
            "with users or client certificates, or listen on 127.0.0.1"
        )


def renderer_of(
    options: Options, owner_of: Callable[[str], int | None] = lambda _: None
) -> Renderer:
    """What the agent serves: its identity on every series, within its series budget by default."""
    # A tick more than a scrape, so that a scrape meets the 0 of a counter that begins to count.
    hold_seconds = options.scrape_seconds + options.tick
    limit = None if options.detail else MAX_SERIES
    return Renderer(options.identity, SeriesBudget(hold_seconds, limit, owner_of=owner_of))


def _tune_garbage_collector() -> None:
    """Takes the agent's own objects out of the search for cycles, which took a tenth of a tick.

    A tick creates thousands of readings and frees all of them without a cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS)


def _log_to_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="lockstep agent: level=%(levelname)s %(message)s",
    )
