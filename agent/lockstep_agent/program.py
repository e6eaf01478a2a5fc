"""The running agent: collectors, sampler and server put together, until a signal ends it."""

import logging
import signal
import sys

import click

from lockstep_agent.collectors import build_collectors
from lockstep_agent.options import Options
from lockstep_agent.sampler import Sampler
from lockstep_agent.serve import MetricsServer

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def print_once(options: Options) -> None:
    """Writes one scrape to stdout."""
    _talk_on_stderr()
    sampler = Sampler(build_collectors(options), options.tick_seconds)
    click.echo(sampler.sample().text, nl=False)


def serve(options: Options) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        click.UsageError: the address cannot be listened on.
    """
    for number in _ENDING_SIGNALS:
        signal.signal(number, signal.default_int_handler)
    try:
        _serve(options)
    except KeyboardInterrupt:
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _serve(options: Options) -> None:
    _talk_on_stderr()
    sampler = Sampler(build_collectors(options), options.tick_seconds)
    try:
        server = MetricsServer(options.host, options.port, sampler)
    except OSError as error:
        raise click.UsageError(
            f"--listen {options.host}:{options.port} cannot be had ({error.strerror}); "
            "choose another address, or port 0 for any free one"
        ) from error
    sampler.start()
    click.echo(f"serving {server.url}", err=True)
    server.serve_forever()


def _talk_on_stderr() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="lockstep agent: level=%(levelname)s %(message)s",
    )
