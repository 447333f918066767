"""Cleaning of tables as people write them: number formats, dates, ids, and guesses at missing roles."""
