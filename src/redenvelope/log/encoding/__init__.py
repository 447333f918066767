"""Encoding of features and history as states, fitted on training users only."""
