"""The schema of a log: types and meaning of its columns, inferred from all rows, in any number of parts."""
