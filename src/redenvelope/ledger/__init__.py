"""The money: what is held for decisions and what was spent, never more than the total, whatever crashes."""
