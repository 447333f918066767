"""Finite constrained MDPs, small enough to write out as tables, and their exact solutions."""
