"""WHO GETS WHAT: policies, prices and who follows which, constraints, and what actions are worth."""
