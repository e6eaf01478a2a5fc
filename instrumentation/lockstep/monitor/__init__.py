"""The monitor that a training loop holds, with all that it does besides recording steps."""
