"""FIND THE PRICE: from a function that prices duals to the dual that spends the budget."""
