"""Reports on a job: the slow ranks, since when, in which phase and at what cost; or nobody."""
