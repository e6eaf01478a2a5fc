"""Pods and ranks in namespaces of this machine, watched as a cluster would be."""
