"""The service: decisions over HTTP, paid from a ledger, with prices that are paced by what is left."""
