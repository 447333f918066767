"""THE ARTEFACT: the plan, its certificate and folder, and decisions by it. Knows nothing of how it is made."""
