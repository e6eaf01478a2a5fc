"""Replays of a job with some of its operations as quick as they should be.

After Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI
2025 (arXiv 2505.05713): ``grid`` lays the rows out, ``graph`` says what waits for what, ``replay``
runs a step again with other durations, ``analysis`` asks the questions, ``verdict`` draws the
conclusion.
"""
