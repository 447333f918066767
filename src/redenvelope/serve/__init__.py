"""In use: decisions over HTTP, paid from a ledger, at a price that follows the money."""
