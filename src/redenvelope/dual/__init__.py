"""FIND THE PRICE: the search for the Lagrange multipliers (prices) whose plan spends the budgets."""
