"""The reference job: a byte-level GPT on real text, trained by several ranks in lockstep."""
