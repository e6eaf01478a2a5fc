"""Ranks in network namespaces, so that a network can be slow in earnest."""
