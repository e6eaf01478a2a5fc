"""Sharded checkpoints that survive kills: verified, and committed by one rename."""
