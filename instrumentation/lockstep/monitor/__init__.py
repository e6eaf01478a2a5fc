"""What a training loop holds, and what it does besides recording steps."""
