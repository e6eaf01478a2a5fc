"""Checkpoints and restores, as the loop or torch itself reports them."""
