"""One reader a source; each gives the same frozen values."""
