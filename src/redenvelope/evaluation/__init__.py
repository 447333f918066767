"""CHECK IT: what a policy would have earned and cost, from a log of another, and how sure that is."""
