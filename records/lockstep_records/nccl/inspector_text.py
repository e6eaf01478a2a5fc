"""The Prometheus text that NCCL's Inspector rewrites in place, one file a GPU.

From 2.30 on a value is a mean over an interval, without a rank; 2.29.7 writes single operations.
Label values are not escaped, a reader may see half of a file, and a GPU that completes nothing
keeps its old one: only the age of the file tells.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

FILE_NAME = re.compile(r"nccl_inspector_metrics_[\w.-]{1,128}\.prom")
MAX_BYTES = 4 << 20
MAX_SAMPLES = 1 << 14
SECONDS_NAMES = ("nccl_collective_exec_time_microseconds", "nccl_p2p_exec_time_microseconds")
_LINE = re.compile(rb"(nccl_\w{1,64})\{([^\n]{1,2048})\} ([0-9.eE+-]{1,32})")
_LABEL = re.compile(r'(\w{1,32})="(.*?)"(?=,\w{1,32}="|$)')


class Sample(NamedTuple):
    """One value, as it is written."""

    name: str
    labels: dict[str, str]
    value: float

    @property
    def is_single(self) -> bool:
        """Whether it is of a single operation and not a mean."""
        return "coll_sn" in self.labels


def read_samples(text: bytes) -> Iterator[Sample]:
    """The samples of whole lines; what is none is left out."""
    for number, line in enumerate(text.split(b"\n")[:-1]):
        match = _LINE.fullmatch(line)
        if match is None or number >= MAX_SAMPLES:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = dict(_LABEL.findall(match[2].decode("utf-8", "replace")))
        yield Sample(match[1].decode(), labels, value)
