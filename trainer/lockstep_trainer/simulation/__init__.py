"""Simulated jobs of thousands of ranks, written as real rank pages."""
