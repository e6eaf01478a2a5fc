"""The analysis of a recording, without a file, a clock or a network: one frozen analysis."""
