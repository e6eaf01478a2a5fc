"""Parts of a report's JSON that stand by themselves, and the kinds of its values."""

from typing import Annotated, Any, TypedDict

from msgspec import Meta

Seconds = Annotated[float | None, Meta(description="Seconds; null where unknown.")]
Ratio = Annotated[float | None, Meta(description="Share or ratio; null where unknown.")]
Count = Annotated[int, Meta(ge=0)]
Numbers = dict[str, float | None]


class WhatIf(TypedDict):
    """Result of a replay with other durations; slowdowns are ratios to the ideal step."""

    slowdown: Ratio
    waste_ratio: Ratio
    launch_slowdown: Ratio
    simulation_error_ratio: Ratio
    m_w: Ratio
    m_s: Ratio
    seconds: float
    ideal_seconds: float
    by_op_type: Numbers
    by_worker: Numbers
    by_replica: Numbers
    by_stage: Numbers
    by_step: dict[str, Numbers]
    by_op_type_per_step: dict[str, Numbers]
    by_replica_per_step: dict[str, Numbers]
    by_stage_per_step: dict[str, Numbers]
    worst_workers: dict[str, Any]
    stages: dict[str, dict[str, Any]]
    micro_batch_correlation: Ratio
    micro_batch_spread_ratio: Ratio
    levelled_batches_removed_ratio: Ratio
    levelled_stages_removed_ratio: Ratio
    levelled_ranks_removed_ratio: Ratio
    negative_transfers: Count
    worst_negative_seconds: Seconds
    notes: list[str]


class JobGoodput(TypedDict):
    """Where the allocated time of a whole job went, over all its attempts."""

    attempts: Count
    elapsed_seconds: Seconds
    allocated_gpu_seconds: Seconds
    productive_ratio: Ratio
    ettr_ratio: Ratio
    gpu_seconds: Numbers


class Sign(TypedDict):
    """Trouble on the node of a slow rank while it was slow."""

    cause: str
    node: str
    begin_time: Seconds
    end_time: Seconds
    value: float
    unit: str
    source: str
    proven: bool
    episode_start_step: int


class Standstill(TypedDict):
    """A stretch in which no rank completed a step; it is part of no episode."""

    step: Annotated[int | None, Meta(description="Last step completed before.")]
    missing: Annotated[list[int], Meta(description="Ranks that the others waited for.")]
    phase: str | None
    seconds: float
    begin_time: Seconds
    lasted: Annotated[bool, Meta(description="No step followed.")]
    is_now: Annotated[bool, Meta(description="The ranks stood still when the report was made.")]
    words: str
