"""NVIDIA's libdcgm through ctypes: profiling fields of GPUs that NVML has no GPM for.

Functions, numbers and layouts are those of ``dcgmlib/dcgm_agent.h``, ``dcgm_structs.h`` and
``dcgm_fields.h`` in https://github.com/NVIDIA/DCGM, releases 3 and 4 (commits 1f7a418 and 0d22068;
``testing/python3/dcgm_structs.py`` of 1477d87 has the same layouts for release 4).
This has never run with the real library: the tests use a stub in C, written from the same headers.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIBRARIES = ("libdcgm.so.4", "libdcgm.so.3", "libdcgm.so")
_MAX_GPUS = 32  # DCGM_MAX_NUM_DEVICES
_AUTO, _LIVE, _GPU, _ALL_GPUS = 1, 1, 1, 0x7FFF_FFFF  # mode, flag, entity group, group id
_INDEX, _UUID = 52, 54  # DCGM_FI_DEV_NVML_INDEX, DCGM_FI_DEV_UUID
# not faster: 100 ms slowed the tokens of an inference server by about 2 % (srt-slurm PR 401)
_INTERVAL_MICROSECONDS, _HISTORY_SECONDS, _HISTORY_SAMPLES = 1_000_000, 5.0, 2
_TIMEOUT_MILLISECONDS = 2000
_UNIX = "unix:"
EMBEDDED = "embedded"


class NoDcgmError(RuntimeError):
    """No libdcgm answers; the text gives the reason."""


class _ConnectParams(ctypes.Structure):
    """``dcgmConnectV2Params_v2``."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("persist_after_disconnect", ctypes.c_uint),
        ("timeout_milliseconds", ctypes.c_uint),
        ("is_unix_socket", ctypes.c_uint),
    )


class _Entity(ctypes.Structure):
    """``dcgmGroupEntityPair_t``."""

    _fields_ = (("group", ctypes.c_int), ("id", ctypes.c_uint))


class _Union(ctypes.Union):
    _fields_ = (
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_char * 256),
        ("blob", ctypes.c_char * 4096),
    )


class _Value(ctypes.Structure):
    """``dcgmFieldValue_v2``."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("group", ctypes.c_int),
        ("entity", ctypes.c_uint),
        ("field", ctypes.c_ushort),
        ("kind", ctypes.c_ushort),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_uint),
        ("microseconds", ctypes.c_int64),
        ("value", _Union),
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one GPU.

    Attributes:
        index: NVML index of the GPU.
        field: number of DCGM's field.
        value: in the field's unit.
        wall_seconds: wall clock at which the engine took it.
    """

    index: int
    uuid: str
    field: int
    value: float
    wall_seconds: float


class Dcgm:
    """One connection to a host engine, or an engine of its own in this process.

    Args:
        engine: ``embedded``, ``HOST[:PORT]`` or ``unix:PATH``.
        fields: numbers of the fields to watch, the most important first.
        library: the library to load; None leaves it to the loader's search.

    Attributes:
        watched: the fields that the engine agreed to watch.

    Raises:
        NoDcgmError: no library, no engine, or none of the fields can be watched.
    """

    def __init__(self, engine: str, fields: Sequence[int], library: Path | None = None) -> None:
        self._lib = _load(library)
        self._handle = ctypes.c_size_t()
        self._embedded = engine == EMBEDDED
        # an embedded engine runs in this process; a host engine is shared with other programs
        self._call("dcgmInit")
        try:
            self._open(engine)
            self._gpus = self._list_gpus()
            self._identities = self._identify()
            self.watched = tuple(self._watch(fields))
        except NoDcgmError:
            self.close()
            raise
        if not self.watched:
            self.close()
            raise NoDcgmError("libdcgm watches none of the profiling fields on these GPUs")

    def read(self) -> Iterator[Sample]:
        """The newest sample of each field and GPU in the engine's memory.

        Raises:
            NoDcgmError: the engine does not answer any more.
        """
        for value in self._read_latest(self.watched, 0):
            identity = self._identities.get(value.entity)
            if value.status != 0 or value.group != _GPU or identity is None:
                continue
            types = {"d": value.value.real, "i": float(value.value.integer)}
            number = types.get(chr(value.kind))
            if number is not None:
                yield Sample(*identity, value.field, number, value.microseconds * 1e-6)

    def close(self) -> None:
        """Disconnects from the engine, or stops an embedded one."""
        with contextlib.suppress(NoDcgmError):  # a lost engine needs no disconnection
            if self._handle.value:
                self._call("dcgmStopEmbedded" if self._embedded else "dcgmDisconnect", self._handle)
        with contextlib.suppress(NoDcgmError):
            self._call("dcgmShutdown")
        self._handle = ctypes.c_size_t()

    def _open(self, engine: str) -> None:
        handle = ctypes.byref(self._handle)
        if self._embedded:
            self._call("dcgmStartEmbedded", ctypes.c_int(_AUTO), handle)
            return
        params = _ConnectParams(
            version=_version(_ConnectParams, 2),
            timeout_milliseconds=_TIMEOUT_MILLISECONDS,
            is_unix_socket=engine.startswith(_UNIX),
        )
        address = engine.removeprefix(_UNIX).encode()
        self._call("dcgmConnect_v2", ctypes.c_char_p(address), ctypes.byref(params), handle)

    def _list_gpus(self) -> tuple[int, ...]:
        ids, count = (ctypes.c_uint * _MAX_GPUS)(), ctypes.c_int()
        self._call("dcgmGetAllSupportedDevices", self._handle, ids, ctypes.byref(count))
        if not 0 < count.value <= _MAX_GPUS:
            raise NoDcgmError(f"libdcgm supports {count.value} GPUs of this node")
        return tuple(ids[: count.value])

    def _identify(self) -> dict[int, tuple[int, str]]:
        """NVML index and UUID of each GPU by DCGM's own number."""
        index: dict[int, int] = {}
        uuid: dict[int, str] = {}
        for value in self._read_latest((_INDEX, _UUID), _LIVE):
            if value.status == 0 and value.field == _INDEX:
                index[value.entity] = int(value.value.integer)
            elif value.status == 0 and value.field == _UUID:
                uuid[value.entity] = value.value.text.decode(errors="replace")
        return {gpu: (index[gpu], uuid[gpu]) for gpu in index if uuid.get(gpu, "").isprintable()}

    def _watch(self, fields: Sequence[int]) -> Iterable[int]:
        """The fields that the engine watches, all if it can."""
        # a GPU has few profiling counters: DCGM refuses a group whose fields need too many at once
        if self._watch_group(fields):
            return fields
        return [field for field in fields if self._watch_group((field,))]

    def _watch_group(self, fields: Sequence[int]) -> bool:
        group = ctypes.c_size_t()
        numbers = (ctypes.c_ushort * len(fields))(*fields)
        name = f"lockstep-{os.getpid()}-{'-'.join(map(str, fields[:1]))}-{len(fields)}"
        try:
            self._call(
                "dcgmFieldGroupCreate",
                self._handle,
                ctypes.c_int(len(fields)),
                numbers,
                ctypes.c_char_p(name.encode()),
                ctypes.byref(group),
            )
            self._call(
                "dcgmWatchFields",
                self._handle,
                ctypes.c_size_t(_ALL_GPUS),
                group,
                ctypes.c_longlong(_INTERVAL_MICROSECONDS),
                ctypes.c_double(_HISTORY_SECONDS),
                ctypes.c_int(_HISTORY_SAMPLES),
            )
        except NoDcgmError:
            return False
        return True

    def _read_latest(self, fields: Sequence[int], flags: int) -> Any:
        entities = (_Entity * len(self._gpus))(*(_Entity(_GPU, gpu) for gpu in self._gpus))
        numbers = (ctypes.c_ushort * len(fields))(*fields)
        values = (_Value * (len(fields) * len(self._gpus)))()
        self._call(
            "dcgmEntitiesGetLatestValues",
            self._handle,
            entities,
            ctypes.c_uint(len(entities)),
            numbers,
            ctypes.c_uint(len(numbers)),
            ctypes.c_uint(flags),
            values,
        )
        return values

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            code = int(getattr(self._lib, name)(*arguments))
        except AttributeError as error:
            raise NoDcgmError(f"libdcgm lacks {name}: it is older than release 3") from error
        if code != 0:
            raise NoDcgmError(f"libdcgm: {name} gives {code}, {_error_text(self._lib, code)}")


def _load(library: Path | None) -> ctypes.CDLL:
    first_reason = ""
    for name in (str(library),) if library else _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            first_reason = first_reason or str(error)
    raise NoDcgmError(f"libdcgm cannot be loaded: {first_reason}")


def _version(struct: type[ctypes.Structure], number: int) -> int:
    """The struct version as ``MAKE_DCGM_VERSION`` builds it: size, and number from bit 24 on."""
    return ctypes.sizeof(struct) | number << 24


def _error_text(lib: ctypes.CDLL, code: int) -> str:
    try:
        error_string = lib.errorString
    except AttributeError:
        return "an error"
    error_string.restype = ctypes.c_char_p
    text = error_string(ctypes.c_int(code))
    return text.decode(errors="replace") if isinstance(text, bytes) else "an error"
