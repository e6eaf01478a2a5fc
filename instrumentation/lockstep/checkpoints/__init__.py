"""Checkpoints of ``torch.distributed.checkpoint``, counted without a change of the loop."""
