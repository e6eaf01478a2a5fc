"""The command lines of the trainer: train, simulate, shards, and training in network namespaces."""
