"""Reads an archive by ranges from any store that fsspec knows, and writes files into it.

A store that fails now and then is asked again, a few times; what cannot be read is an
``ArchiveError``, and its reader goes on without it.
"""

import io
import random
import stat
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from lockstep_records.archive import manifest
from lockstep_records.archive.store import put_file
from lockstep_records.archive.tables import check_columns
from lockstep_records.files.jobs import JOB_ID
from lockstep_records.page.layout import (
    HEARTBEAT_OFFSET,
    PERIODIC_OFFSETS,
    SLOT_OFFSETS,
    page_bytes,
)
from lockstep_records.page.reader import PageHead, read_identity

_TRIES = 5
_WAIT_SECONDS = 0.25
"""Before the second try; each further one waits twice as long, up to four seconds in all."""
_FINAL = (PermissionError, NotADirectoryError, IsADirectoryError)
"""Answers that another try does not change."""
_MAX_NODES = 1 << 17
_MAX_RANKS_BYTES, _MAX_UNPACKED_RANKS, _MAX_TABLE_BYTES = 64 << 20, 256 << 20, 1 << 30
Result = TypeVar("Result")


def restore_page(path: Path, head: PageHead) -> None:
    """Writes the file of a page without its rows, for readers of folders."""
    row_count = read_identity(head.identity, path)["row_count"]
    with path.open("wb") as file:
        for at, data in (
            (0, head.identity),
            (HEARTBEAT_OFFSET, head.heartbeat),
            (SLOT_OFFSETS[head.state[0] & 1], head.state),
            (PERIODIC_OFFSETS[head.periodic[0] & 1], head.periodic),
        ):
            file.seek(at)
            file.write(data)
        file.truncate(page_bytes(row_count))


class ArchiveError(ValueError):
    """A file of an archive that cannot be read; one sentence."""


class JobArchive:
    """A job's folder in an fsspec file system.

    Attributes:
        is_local: whether it lies on a file system, where a file is read without waiting.
    """

    def __init__(
        self, files: Any, folder: str, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._files, self._sleep = files, sleep
        self.folder, self.is_local = folder.rstrip("/"), isinstance(files, LocalFileSystem)

    @property
    def job_id(self) -> str:
        """Id of the job, which is the name of its folder."""
        return PurePosixPath(self.folder).name

    def list_names(self, path: str) -> dict[str, int]:
        """Names in a folder of the job and the sizes of files; empty where there is none."""
        try:
            entries = self._ask(path, lambda: self._files.ls(self._path(path), detail=True))
        except FileNotFoundError:
            return {}
        return {PurePosixPath(each["name"]).name: each.get("size") or 0 for each in entries}

    def list_nodes(self) -> list[str]:
        """Folders of the job's nodes."""
        names = sorted(self.list_names("nodes"))
        if len(names) > _MAX_NODES:
            raise ArchiveError(f"{self.folder} has {len(names):,} nodes; at most {_MAX_NODES:,}")
        return names

    def read_manifest(self, node: str) -> manifest.Manifest:
        """What a node has of the job; raises ArchiveError."""
        if not JOB_ID.fullmatch(node):
            raise ArchiveError(f"{node!r} is not a name that a node has")
        path = f"nodes/{node}/{manifest.MANIFEST}"
        try:
            data = self.read(path, 0, manifest.MAX_MANIFEST_BYTES + 1)
            return manifest.decode_manifest(data, self.job_id, node)
        except FileNotFoundError as error:
            raise ArchiveError(f"node {node} has no manifest") from error
        except ValueError as error:
            raise ArchiveError(f"the manifest of node {node} is left out: {error}") from error

    def read_thinned(self) -> manifest.ThinnedJob:
        """What thinning left of the job; raises FileNotFoundError and ArchiveError."""
        try:
            data = self.read(manifest.THINNED, 0, manifest.MAX_MANIFEST_BYTES + 1)
            return manifest.decode_thinned(data, self.job_id)
        except ArchiveError:
            raise
        except ValueError as error:
            raise ArchiveError(f"{manifest.THINNED} is left out: {error}") from error

    def write(self, path: str, data: bytes) -> None:
        """Writes a file of the job, of which no reader meets a part; raises ArchiveError."""
        target = self._path(path)
        self._ask(path, lambda: put_file(self._files, target, iter([data]), len(data)))

    def remove(self, path: str) -> None:
        """Removes a file of the job, if it is there; raises ArchiveError."""
        with suppress(FileNotFoundError):
            self._ask(path, lambda: self._files.rm_file(self._path(path)))

    def read(self, path: str, begin: int, end: int) -> bytes:
        """Bytes of a file of the job; raises FileNotFoundError and ArchiveError."""
        data: bytes = self._ask(path, lambda: self._read(self._path(path), begin, end))
        return data

    def read_rows(
        self,
        node: str,
        attempt: int,
        stretch: manifest.Stretch,
        columns: Iterable[str],
        *,
        steps: tuple[int, int] | None = None,
    ) -> tuple[pa.Table, int]:
        """Some columns of a file of rows, those that it has; raises ArchiveError.

        Of a first and a last step only the row groups are read that may have steps between them.
        The number is that of rows in row groups that are damaged.
        """
        path = f"nodes/{node}/{attempt}/{stretch.name}"
        try:
            source = self._ask(path, lambda: self._open(path, stretch.size_bytes))
            return _parse(path, source, columns, stretch, steps)
        except FileNotFoundError as error:
            raise ArchiveError(f"{path} is not there") from error

    def read_ranks(self, node: str, attempt: int) -> pa.Table:
        """The table of ranks of a node; raises ArchiveError."""
        path = f"nodes/{node}/{attempt}/{manifest.table_name(manifest.RANKS, 0)}"
        try:
            data = self.read(path, 0, _MAX_RANKS_BYTES)
        except FileNotFoundError as error:
            raise ArchiveError(f"{path} is not there") from error
        return _parse(path, pa.BufferReader(data))[0]

    def _read(self, path: str, begin: int, end: int) -> Any:
        if not self.is_local:
            return self._files.cat_file(path, start=begin, end=end)
        _check_regular(path)
        with Path(path).open("rb", buffering=0) as file:
            file.seek(begin)
            return file.read(end - begin)

    def _open(self, path: str, size: int) -> Any:
        """A file of the job for pyarrow, which reads local ones by itself, beside Python."""
        if not self.is_local:
            return pa.PythonFile(_RangeFile(self, path, size), mode="r")
        _check_regular(self._path(path))
        source = pa.OSFile(self._path(path))
        if source.size() < size:
            raise ArchiveError(f"{path} is damaged or cut off: {source.size():,} bytes of {size:,}")
        return source

    def _path(self, path: str) -> str:
        return f"{self.folder}/{path}" if path else self.folder

    def _ask(self, path: str, call: Callable[[], Result]) -> Result:
        """What a store answers, asked again where it fails for now."""
        for number in range(_TRIES):
            try:
                return call()
            except FileNotFoundError:
                raise
            except _FINAL as error:
                raise ArchiveError(f"{path} cannot be read: {error}") from error
            except _store_errors() as error:
                last = error
            # Many readers that failed together should not come again together.
            if number + 1 < _TRIES:
                self._sleep(_WAIT_SECONDS * 2**number * random.uniform(0.5, 1.0))
        text = str(last) or type(last).__name__
        raise ArchiveError(f"{path} cannot be read, asked {_TRIES} times: {text}") from last


def _check_regular(path: str) -> None:
    # A name may be that of a pipe, which waits for ever.
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise ArchiveError(f"{path} is not a regular file")


def _store_errors() -> tuple[type[Exception], ...]:
    """What stores raise; aiohttp's errors of a status are no OSError."""
    aiohttp = sys.modules.get("aiohttp")
    errors = (OSError, NotImplementedError)  # what cannot be written to
    return errors if aiohttp is None else (*errors, aiohttp.ClientError)


class _RangeFile(io.RawIOBase):
    """A file of which each read fetches a range, and nothing more."""

    def __init__(self, archive: JobArchive, path: str, size: int) -> None:
        super().__init__()
        self._archive, self._path, self._size, self._at = archive, path, size, 0
        self._tail = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = begin + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin, end = self._at, self._size if size < 0 else min(self._size, self._at + size)
        tail_begin = self._size - len(self._tail)
        if begin >= tail_begin:
            data = self._tail[begin - tail_begin : max(end, begin) - tail_begin]
        else:
            data = self._archive.read(self._path, begin, end)
        if end == self._size and begin < tail_begin:
            # The end holds the footer, and columns that are asked for next.
            self._tail = data
        self._at += len(data)
        return data


def _parse(
    path: str,
    source: Any,
    columns: Iterable[str] = (),
    stretch: manifest.Stretch | None = None,
    steps: tuple[int, int] | None = None,
) -> tuple[pa.Table, int]:
    try:
        # Ranges of a store are fetched together.
        is_remote = isinstance(source, pa.PythonFile)
        options = {"page_checksum_verification": True, "pre_buffer": is_remote}
        with pq.ParquetFile(source, **options) as file:
            metadata, schema = file.metadata, file.schema_arrow
            if stretch is not None:
                if metadata.num_rows != stretch.rows:
                    counts = f"{metadata.num_rows:,} rows, its manifest {stretch.rows:,}"
                    raise ArchiveError(f"{path} has {counts}")
                try:
                    check_columns(stretch.table, schema)
                except ValueError as error:
                    raise ArchiveError(f"{path} {error}") from error
            groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
            most = _MAX_UNPACKED_RANKS if stretch is None else _MAX_TABLE_BYTES
            if (size := sum(group.total_byte_size for group in groups)) > most:
                raise ArchiveError(f"{path} unpacks to {size:,} bytes, at most {most:,}")
            names = set(every := schema.names)
            if len(names) < len(every):
                raise ArchiveError(f"{path} has two columns of one name")
            chosen = [name for name in columns or every if name in names]
            numbers = range(metadata.num_row_groups)
            inside = [number for number in numbers if _has_steps(metadata, number, steps)]
            return _read_groups(file, inside, chosen)
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise ArchiveError(f"{path} is damaged or cut off: {reason}") from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ArchiveError(f"{path} is damaged or cut off: {error}") from error


def _read_groups(
    file: pq.ParquetFile, numbers: Sequence[int], columns: list[str]
) -> tuple[pa.Table, int]:
    """Those row groups that can be read, and how many rows the others have; raises as pyarrow."""
    try:
        return file.read_row_groups(numbers, columns=columns, use_threads=False), 0
    except (pa.ArrowException, OSError):
        if len(numbers) <= 1:
            raise
    parts, num_lost = [], 0
    for number in numbers:
        try:
            parts.append(file.read_row_group(number, columns=columns, use_threads=False))
        except (pa.ArrowException, OSError) as error:
            num_lost += file.metadata.row_group(number).num_rows
            last = error
    if not parts:
        raise last
    return pa.concat_tables(parts), num_lost


def _has_steps(metadata: Any, number: int, steps: tuple[int, int] | None) -> bool:
    """Whether a row group may have steps between the first and the last of a pair."""
    names = metadata.schema.names
    if steps is None or "step" not in names:
        return True
    bounds = metadata.row_group(number).column(names.index("step")).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return bool(bounds.max >= steps[0] and bounds.min <= steps[1])
