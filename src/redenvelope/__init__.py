"""redenvelope."""
