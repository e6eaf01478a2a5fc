"""Archives that last: rows of finished stretches as Parquet by columns, and what is there."""
