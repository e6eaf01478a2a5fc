"""Ranks in network namespaces, whose links can really be slow, delayed or lossy."""
