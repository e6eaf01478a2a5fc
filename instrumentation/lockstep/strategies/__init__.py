"""Instrumentation points: where each parallel strategy computes and where it waits."""
