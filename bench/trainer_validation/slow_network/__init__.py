"""Ranks whose network is really slow: namespaces on one bridge, and the relay of a slow link."""
