"""From text to batches: corpora, token shards, shuffling and prefetching."""
