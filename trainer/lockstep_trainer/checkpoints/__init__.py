"""Checkpoints that survive kills: sharded, committed by one rename, verified."""
