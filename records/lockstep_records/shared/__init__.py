"""What every component needs: options, durations, tokens, printable text, Prometheus."""
