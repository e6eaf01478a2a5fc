"""Keeps the end of each rank's stderr beside its page, and passes all of it on.

A rank writes into a file in memory that belongs to nobody's file system, and the launcher reads it:
no write of a rank can block or fail, neither while the launcher's own output is held up nor after
the launcher has died, as it could in a pipe.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import LogsDest

from lockstep_records.last_output import (
    MAX_OUTPUT_BYTES,
    OutputRing,
    RankError,
    read_error,
    read_torchrun_error,
    write_error,
)
from lockstep_records.page.writer import NoPageError
from lockstep_records.secret_patterns import SecretMask

log = logging.getLogger("lockstep")
_STDERR = 2
_POLL_SECONDS = 0.1
_MAX_READ_BYTES = 1 << 20
_MAX_KEPT_BYTES = 2 * MAX_OUTPUT_BYTES
_MAX_LINE_BYTES = 8192
# The kernel's numbers: Python has no call to give memory inside a file back.
_PUNCH_HOLE_AND_KEEP_SIZE = 0x02 | 0x01
_libc = ctypes.CDLL(None, use_errno=True)


class KeptOutput:
    """The stderr of one rank.

    Args:
        page: where the rank's page will be.
        descriptor: of the file in memory that the rank writes.
        forward: takes everything that the rank writes.

    Attributes:
        is_closed: whether all of it is taken in.
    """

    def __init__(self, page: Path, descriptor: int, forward: Callable[[bytes], None]) -> None:
        self._descriptor, self._forward = descriptor, forward
        self._ring, self._mask = OutputRing(page), SecretMask()
        self._lock = threading.Lock()
        self._offset = 0
        self._line = b""  # not complete yet
        self.is_closed = False

    def drain(self, *, at_end: bool = False) -> None:
        """Takes in what the rank has written since; at the end also a line that is not complete."""
        with self._lock:
            if self.is_closed:
                return
            while data := os.pread(self._descriptor, _MAX_READ_BYTES, self._offset):
                self._offset += len(data)
                # First the ring: what takes the rest may be held up.
                self._keep(data)
                self._forward(data)
            if at_end:
                self._write_line(self._line)
                self._ring.close()
                os.close(self._descriptor)
                self.is_closed = True
            elif self._offset:
                size = ctypes.c_int64(self._offset)
                _libc.fallocate(
                    self._descriptor, _PUNCH_HOLE_AND_KEEP_SIZE, ctypes.c_int64(0), size
                )

    def _keep(self, data: bytes) -> None:
        # What would be written over at once is not even masked, which costs the most.
        *lines, self._line = (
            (self._line + data)[-_MAX_KEPT_BYTES:].replace(b"\r", b"\n").split(b"\n")
        )
        for line in lines:
            self._write_line(line + b"\n")
        if len(self._line) > _MAX_LINE_BYTES:
            self._write_line(self._line)
            self._line = b""

    def _write_line(self, line: bytes) -> None:
        if line:
            self._ring.write(self._mask.mask(line.decode(errors="replace")).encode())


class OutputKeeper:
    """Polls the output of the ranks of one node, attempt after attempt, in a thread of its own."""

    def __init__(self) -> None:
        self._open_outputs: list[KeptOutput] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def open(self, page: Path) -> tuple[KeptOutput | None, str]:
        """The output of a rank, and the path that the rank writes.

        Where it cannot be kept there is none and the path is empty: the rank inherits ours.
        """
        try:
            descriptor = os.memfd_create(f"lockstep-{page.stem}.stderr")
        except OSError:
            return None, ""
        try:
            output = KeptOutput(page, descriptor, _forward)
        except (NoPageError, OSError) as error:
            os.close(descriptor)
            log.warning("the last output of a rank is not kept: %s", error)
            return None, ""
        self._open_outputs.append(output)
        return output, f"/proc/self/fd/{descriptor}"

    def close(self) -> None:
        """Ends the thread, and takes in what is left."""
        self._stop.set()
        self._thread.join()
        for output in self._open_outputs:
            output.drain(at_end=True)

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            self._open_outputs = [output for output in self._open_outputs if not output.is_closed]
            for output in self._open_outputs:
                output.drain()


def _forward(data: bytes) -> None:
    """Writes to the launcher's own stderr, as far as anybody reads it."""
    view = memoryview(data)
    with suppress(OSError):
        while view:
            view = view[os.write(_STDERR, view) :]


@dataclass(frozen=True, slots=True)
class RankOutput:
    """What one rank leaves behind.

    Attributes:
        page: where its page is.
        output: its output; None where that is not kept.
        error_file: written by torchrun's ``record`` where the program uses it.
    """

    page: Path
    output: KeptOutput | None
    error_file: Path

    def end(self) -> RankError | None:
        """Takes in what is left once the rank has ended; returns the error that ended it."""
        if self.output is not None:
            self.output.drain(at_end=True)
        error = read_error(self.page)
        if error is None and (error := read_torchrun_error(self.error_file)) is not None:
            with suppress(OSError):
                write_error(self.page, error)
                error = read_error(self.page)  # with its secrets masked
        return error


class KeptLogsSpecs(DefaultLogsSpecs):
    """Torch's destinations of logs, with stderr to the keeper.

    Args:
        keeper: keeps the output.
        log_folder: folder of torch's own files, such as error files.
        page_of: path of a rank's page in the attempt that starts.

    Attributes:
        outputs: of the ranks that were started last.
    """

    def __init__(
        self, keeper: OutputKeeper, log_folder: Path, page_of: Callable[[int], Path]
    ) -> None:
        super().__init__(log_dir=str(log_folder))
        self._keeper, self._page_of = keeper, page_of
        self.outputs: dict[int, RankOutput] = {}

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Destinations by local rank."""
        destinations = super().reify(envs)
        self.outputs = {}
        for local_rank, environment in envs.items():
            rank = int(environment["RANK"])
            page = self._page_of(rank)
            output, destinations.stderrs[local_rank] = self._keeper.open(page)
            error_file = Path(environment["TORCHELASTIC_ERROR_FILE"])
            self.outputs[rank] = RankOutput(page, output, error_file)
        return destinations
