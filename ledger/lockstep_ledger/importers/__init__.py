"""Events from other sources: Slurm, Kubernetes, MLPerf logs, traces of nodes; one file a source.

Ids follow from what is imported, so that the same period can be imported again and counts once.
"""
