"""Prometheus' remote write: series as protobuf, in Snappy's format without compression.

Format: https://prometheus.io/docs/concepts/remote_write_spec/ and
https://github.com/google/snappy/blob/main/format_description.txt.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import httpx
import numpy as np

from .cluster import Values

_SERIES_A_REQUEST = 2000
_SAMPLE_BYTES = 16
_BITS = 7  # of a number in each byte
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_SAMPLE = np.dtype(
    [("head", "S2"), ("tag", "u1"), ("value", "<f8"), ("time_tag", "u1"), ("time", "S6")]
)


@dataclass(frozen=True, slots=True)
class Samples:
    """One series: its labels, with the name, and its values at their times; NaN where absent."""

    labels: Mapping[str, str]
    values: Values


def send(url: str, times: Values, series: Iterable[Samples]) -> int:
    """Writes the series to a Prometheus; returns how many samples they have.

    Raises:
        RuntimeError: Prometheus refuses them.
    """
    empty, number = _empty_samples(times), 0
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        for batch in _batches(series, _SERIES_A_REQUEST):
            body = b"".join(_field(1, _time_series(each, empty)) for each in batch)
            answer = client.post("/api/v1/write", content=_snappy(body), headers=_HEADERS)
            if answer.status_code >= httpx.codes.BAD_REQUEST:
                raise RuntimeError(f"{url} refuses the samples: {answer.text.strip()}")
            number += sum(int(np.isfinite(each.values).sum()) for each in batch)
    return number


def _batches(series: Iterable[Samples], size: int) -> Iterator[list[Samples]]:
    batch: list[Samples] = []
    for each in series:
        batch.append(each)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _empty_samples(times: Values) -> np.ndarray:
    """Samples of the times without values: 18 bytes each, for all times have 6-byte numbers."""
    samples = np.zeros(len(times), dtype=_SAMPLE)
    samples["head"] = bytes((0x12, _SAMPLE_BYTES))
    samples["tag"], samples["time_tag"] = 0x09, 0x10
    samples["time"] = [_varint(round(time * 1000)) for time in times]
    return samples


def _time_series(series: Samples, empty: np.ndarray) -> bytes:
    labels = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for name, value in sorted(series.labels.items())
        if value
    )
    samples = empty.copy()
    samples["value"] = series.values
    return labels + samples[~np.isnan(series.values)].tobytes()


def _field(number: int, content: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >> _BITS:
        out.append(number & 0x7F | 0x80)
        number >>= _BITS
    out.append(number)
    return bytes(out)


def _snappy(content: bytes) -> bytes:
    """The content as one literal."""
    return _varint(len(content)) + b"\xfc" + (len(content) - 1).to_bytes(4, "little") + content
