"""How the events of a job's nodes become one record, and what they add to the counters."""

from lockstep_catalogue import ledger as counted

from ..stories import Story
from .replay import Replay


def test_what_comes_after_the_end_amends_and_is_not_refused() -> None:
    """Nothing of a known job is refused for its lateness."""
    story = Story().start(num_nodes=1, num_gpus=4, price_per_gpu_hour=3600.0).after(60).end()
    replay = Replay(story)
    late = Story(now=story.now - 20)
    late.add("goodput", rank_seconds={"productive": 100.0}, num_gpus=4, num_ranks=4)
    late.add("node_event", sign="xid")
    assert replay.apply(late).refused == []
    assert replay.job.goodput == {"productive": 100.0, "unknown": 140.0}
    assert replay.amended(counted.GPU_SECONDS) == 100
    assert replay.totals[counted.GPU_SECONDS.name, "unknown"] == 240
    assert replay.amendments() == {counted.GPU_SECONDS.name: ("240.0", "140.0")}
    assert replay.rows("goodput") == [(late.now, "goodput", 100.0, 100.0)]
