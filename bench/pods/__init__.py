"""Pods of the shipped manifests as namespaces of one machine, watched as a cluster would be."""
