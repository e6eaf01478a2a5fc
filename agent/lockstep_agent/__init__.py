"""On the node: GPUs, network ports and rank pages, read in the background and served to scrapes."""
