"""Soft Q-learning from the log without a model, for one price or for all prices at once; training only."""
