"""Programs that prove properties of the trainer: the matrix of layouts and the checkpoint soak."""
