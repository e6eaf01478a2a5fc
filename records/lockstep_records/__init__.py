"""Records that a job leaves behind: rank pages and events, their formats, writers and readers."""
