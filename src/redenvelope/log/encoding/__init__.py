"""Features and history into states, fitted on training users only."""
