"""The money of a campaign: held for decisions, settled by outcomes, never more than the total, whatever crashes."""
