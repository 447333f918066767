"""LOGS: the meaning of columns; files into a `Log`, or every violation at once; folds and encoding."""
