"""Keeps the end of each rank's stderr beside its page, and passes all of it on.

A rank writes into a file in memory that belongs to nobody's file system, and the launcher reads it:
no write of a rank can block or fail, neither while the launcher's own output is held up nor after
the launcher has died, as it could in a pipe. What waits to be passed on is bounded: past that the
older part is left out, and a line says how much.
"""

import ctypes
import logging
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import LogsDest

from lockstep_records.files import last_output as files
from lockstep_records.page.writer import NoPageError
from lockstep_records.text.secret_patterns import MAX_LINE_CHARACTERS, SecretMask

log = logging.getLogger("lockstep")
_STDERR = 2
_POLL_SECONDS = 0.1
_MAX_READ_BYTES = 1 << 20
_MAX_KEPT_BYTES = 2 * files.MAX_OUTPUT_BYTES
_MAX_WAITING_BYTES = 64 << 20
_MAX_HELD_SECONDS = 10.0  # at the end, where nobody reads our own stderr
# The kernel's numbers: Python has no call to give memory inside a file back.
_PUNCH_HOLE_AND_KEEP_SIZE = 0x02 | 0x01
_libc = ctypes.CDLL(None, use_errno=True)


class KeptOutput:
    """The stderr of one rank, from a file in memory; it ``is_closed`` when all is taken in.

    ``forward`` takes what the rank writes, as far as it can within some seconds, and gives the
    number of bytes.
    """

    def __init__(self, page: Path, descriptor: int, forward: Callable[[bytes, float], int]) -> None:
        self._descriptor, self._forward = descriptor, forward
        self._ring, self._mask = files.OutputRing(page), SecretMask()
        self._lock = threading.Lock()
        self._taken = self._passed = self._left_out = 0
        self._line = b""  # not complete yet
        self._is_cut = False  # what follows is the rest of a line whose begin is gone
        self.is_closed = False

    def drain(self, *, at_end: bool = False) -> None:
        """Takes in what the rank has written so far; at the end also a line without its end."""
        with self._lock:
            if self.is_closed:
                return
            size = os.fstat(self._descriptor).st_size
            while self._taken < size:
                data = os.pread(self._descriptor, _MAX_READ_BYTES, self._taken)
                self._taken += len(data)
                self._keep(data)
            self._pass_on(size, _MAX_HELD_SECONDS if at_end else 0.0)
            if at_end:
                self._write(self._line)
                self._ring.close()
                os.close(self._descriptor)
                self.is_closed = True
            elif self._passed:
                done = ctypes.c_int64(self._passed)
                _libc.fallocate(
                    self._descriptor, _PUNCH_HOLE_AND_KEEP_SIZE, ctypes.c_int64(0), done
                )

    def _pass_on(self, size: int, wait_seconds: float) -> None:
        if size - self._passed > _MAX_WAITING_BYTES:
            begin = size - _MAX_WAITING_BYTES // 2
            self._left_out += begin - self._passed
            self._passed = begin
        note = f"\nlockstep: {self._left_out:,} bytes of a rank's stderr are left out here\n"
        if self._left_out and self._forward(note.encode(), wait_seconds):
            self._left_out = 0
        while self._passed < size:
            data = os.pread(self._descriptor, _MAX_READ_BYTES, self._passed)
            num_taken = self._forward(data, wait_seconds)
            self._passed += num_taken
            if num_taken < len(data):
                return

    def _keep(self, data: bytes) -> None:
        text = (self._line + data).replace(b"\r", b"\n")
        if len(text) > _MAX_KEPT_BYTES:
            # What would be written over at once is not even masked, which costs the most.
            self._skip(text[:-_MAX_KEPT_BYTES])
            text, self._is_cut = text[-_MAX_KEPT_BYTES:], True
        if self._is_cut:
            rest, end, text = text.partition(b"\n")
            self._skip(rest)
            self._is_cut = not end
        lines, end, self._line = text.rpartition(b"\n")
        self._write(lines + end)
        if len(self._line) > MAX_LINE_CHARACTERS:
            self._write(self._line + b"\n")
            self._line, self._is_cut = b"", True

    def _skip(self, data: bytes) -> None:
        self._mask.skip(data.decode("latin-1"))

    def _write(self, lines: bytes) -> None:
        if lines:
            self._ring.write(self._mask.mask(lines.decode(errors="replace")).encode())


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


def _forward(data: bytes, wait_seconds: float) -> int:
    """Writes to the launcher's own stderr, not waiting longer than that; how many bytes went."""
    stderr, num_taken = select.poll(), 0
    stderr.register(_STDERR, select.POLLOUT)
    try:
        while num_taken < len(data) and stderr.poll(wait_seconds * 1000):
            # A pipe that is ready has room for so many bytes.
            num_taken += os.write(_STDERR, data[num_taken : num_taken + select.PIPE_BUF])
    except OSError:
        return len(data)
    return num_taken


@dataclass(frozen=True, slots=True)
class RankOutput:
    """What one rank leaves behind, where kept, and the error file of torchrun's ``record``."""

    page: Path
    output: KeptOutput | None
    error_file: Path

    def end(self) -> files.RankError | None:
        """Takes in what is left once the rank has ended; returns the error that ended it."""
        if self.output is not None:
            self.output.drain(at_end=True)
        error = files.read_error(self.page)
        if error is None and (error := files.read_torchrun_error(self.error_file)) is not None:
            with suppress(OSError):
                files.write_error(self.page, error)
                error = files.read_error(self.page)  # with its secrets masked
        return error


class KeptLogsSpecs(DefaultLogsSpecs):
    """Torch's destinations of logs, with stderr of each rank's page to the keeper."""

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
