"""LEARN ONCE: models of reward, cost and transition, learned from a log."""
