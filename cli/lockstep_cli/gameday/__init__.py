"""``lockstep gameday``: makes every failure for real, and judges what people are told of it."""
