"""From a report to HTML, Markdown, the terminal and Perfetto."""
