"""REPORTS: what readers see on a terminal or a page."""
