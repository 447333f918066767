"""What people write in tables, made into values: numbers, dates, ids, episodes, missing roles."""
