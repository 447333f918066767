"""SHOW IT: what a person reads on a terminal or a page."""
