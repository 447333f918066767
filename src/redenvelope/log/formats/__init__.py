"""Reading files and dataframes of every kind as tables."""
