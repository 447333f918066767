"""WHO GETS WHAT: policies, mixtures of prices, constraints (eligibility and rules), and records of action values."""
