"""Files and frames of every kind into a table of columns."""
