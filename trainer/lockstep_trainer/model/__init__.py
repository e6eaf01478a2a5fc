"""The model that is trained: a small GPT over bytes, dense or with mixtures of experts."""
