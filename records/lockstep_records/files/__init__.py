"""Files that a job leaves on a node beside its pages and events."""
