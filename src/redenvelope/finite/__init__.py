"""EXACT: problems small enough to write down, and their exact solutions."""
