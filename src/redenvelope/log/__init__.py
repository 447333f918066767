"""DATA IN: what a column means; files into a `Log`, or every violation at once; folds and encoding."""
