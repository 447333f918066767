"""Finite decision problems, small enough to write out, and their exact solutions."""
