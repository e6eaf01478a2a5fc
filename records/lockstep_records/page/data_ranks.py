"""Which ranks count for a job's samples and tokens, so that sums over ranks count each once.

Ranks that differ only in tp hold parts of the same matrices, and those that differ only in pp hold
layers of the same model: they see the same samples. Each may report them, and those at coordinate 0
of both axes count. Ranks along cp hold parts of the same sequences, and each counts its own part.
"""

from collections.abc import Mapping

_SAME_DATA_AXES = ("pp", "tp")


def counts_data(mesh: Mapping[str, int]) -> bool:
    """Whether a rank with these coordinates, by axis, counts for the job's samples and tokens."""
    return all(mesh.get(axis, 0) == 0 for axis in _SAME_DATA_AXES)
