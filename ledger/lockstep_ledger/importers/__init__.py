"""Events from other sources: Slurm, Kubernetes and MLPerf logs; one file a source.

Ids follow from what is imported, so that the same period can be imported again and counts once.
"""
