"""PLANNING: action values at any price, from trees grown once for all prices or from values learned without a model."""
