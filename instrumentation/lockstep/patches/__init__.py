"""All changes to torch: a table of instrumentation points, and what installs and removes them."""
