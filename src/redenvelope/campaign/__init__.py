"""THE RULES OF A CAMPAIGN: who may get what, how often, what it may cost, and how much is left to chance."""
