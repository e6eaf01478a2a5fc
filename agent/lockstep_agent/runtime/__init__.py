"""The running agent: workers that collect, the sampler that renders, the program."""
