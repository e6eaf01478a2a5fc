"""From findings to who failed first, and how the job ended."""
