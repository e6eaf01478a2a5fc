"""Where single operations of a step are reported: waits, and the chunks of a pipeline.

By default nothing listens; the recorder of operations sets ``tap`` to its own function.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Operation(NamedTuple):
    """One operation that has ended.

    Attributes:
        op: its name as in the published straggler traces, such as forward-compute, backward-recv,
            params-all-gather, grads-reduce-scatter; of others the kind of collective.
        start_ns: monotonic time of its beginning: of a wait, the rank's own arrival.
        end_ns: monotonic time of its end.
        micro_batch: its number in the step; None outside a pipeline.
        chunk: number of the pipeline stage; None outside a pipeline.
        kind: kind of collective; None for computing.
    """

    op: str
    start_ns: int
    end_ns: int
    micro_batch: int | None = None
    chunk: int | None = None
    kind: str | None = None


Tap: TypeAlias = Callable[[Operation], None]

tap: Tap | None = None
