"""The one document of a report: sentences, tables and figures, which all renderers show."""
