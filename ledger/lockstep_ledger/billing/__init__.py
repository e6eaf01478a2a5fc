"""Bills of a store: GPU time of its jobs, months that are closed, corrections, what readers get."""
