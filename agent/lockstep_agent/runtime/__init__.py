"""The running agent: workers with a watchdog that run the collectors, and the sampler."""
