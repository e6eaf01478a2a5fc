"""How a program ends that runs until a signal."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def until_signal() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP end the block alike, by a KeyboardInterrupt that goes no further.

    SIGHUP does not where it is ignored, as ``nohup`` has it.
    """
    for number in _ENDING_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        # A second signal while the program ends would print a traceback.
        for number in _ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
