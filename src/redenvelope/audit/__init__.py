"""IS IT WORTH PLANNING: overlap, propensities, effects of actions now and later, and what budgets make sense."""
