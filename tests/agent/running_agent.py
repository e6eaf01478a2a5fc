"""``lockstep agent`` as a process."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx
from servers import wait_until

from lockstep_agent.options import Options
from lockstep_records.text.durations import format_duration

COMMAND = [sys.executable, "-m", "lockstep_cli.main", "agent"]
get = partial(httpx.get, timeout=30)  # a busy machine answers late


def command_line(options: Options) -> list[str]:
    return [
        *("--listen", f"{options.host}:{options.port}", "--dir", str(options.root)),
        *("--cluster", options.cluster, "--node", options.node),
        *("--tick", format_duration(options.tick)),
        *("--hang-timeout", format_duration(options.hang_timeout_seconds)),
        *("--sysfs", str(options.sysfs)),
        *("--nvml-library", str(options.nvml_library)),
        *("--procfs", str(options.procfs), "--detail"),
        *(f"--expect-port={port.device}" for port in options.expect_port),
        *("--kmsg", str(options.kmsg), "--state", str(options.state)),
        *("--fabric-manager-log", str(options.fabric_manager_log)),
        *(("--ledger", options.ledger) if options.ledger else ()),
        *(("--archive", options.archive) if options.archive else ()),
    ]


@contextmanager
def running_agent(options: Options) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The agent as a process of its own, with the address that it logged."""
    agent = subprocess.Popen([*COMMAND, *command_line(options)], stderr=subprocess.PIPE, text=True)
    assert agent.stderr is not None
    try:
        line = next(line for line in agent.stderr if line.startswith("serving "))
        assert line.startswith("serving http://127.0.0.1:")
        url = line.split()[1]
        # On a busy machine it listens before it has a sample.
        ready = url.replace("/metrics", "/ready")
        wait_until(lambda: get(ready).status_code == httpx.codes.OK)
        yield agent, url
    finally:
        agent.kill()
        agent.stderr.close()
        agent.wait()
