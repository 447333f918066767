"""The campaign file of the guide is what its Python says, and fits a log with such columns and actions."""

import re
from pathlib import Path

from redenvelope import Campaign, ColumnMap
from redenvelope.campaign.costs import cost_columns

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "rules-and-budgets.md"


def test_the_guide_says_the_same_twice(tmp_path: Path) -> None:
    text = GUIDE.read_text(encoding="utf-8")
    toml, _ = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (python,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "campaign.toml").write_text(toml, encoding="utf-8")
    said: dict[str, Campaign] = {}
    exec(compile(python, "guide", "exec"), said)
    written = Campaign.from_toml(tmp_path / "campaign.toml")
    assert written.rules == said["campaign"].rules
    assert written.budgets == said["campaign"].budgets
    assert written.explore == said["campaign"].explore
    assert (written.columns, written.audience) == (ColumnMap({"user": "customer_id"}), 50_000)
    assert [rule.sentence() for rule in written.rules][1:] == [
        "5 % off, 10 € coupon: at most twice in the campaign",
        "push: at most twice in any 3 steps",
        "10 € coupon: after one of them, none for 1 step",
    ]


def test_the_budgets_of_the_guide_can_be_read(tmp_path: Path) -> None:
    _, toml = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "campaign.toml").write_text(f"audience = 50000\n{toml}", encoding="utf-8")
    campaign = Campaign.from_toml(tmp_path / "campaign.toml")
    assert [budget.name for budget in campaign.budgets] == [
        "coupons",
        "shipping",
        "pushes",
        "first week",
        "new customers",
    ]
    assert campaign.limits == (4.0, 1.2, 3.0, 1.5, 0.8)
    assert cost_columns(campaign.budgets) == ("shipping_cost",)
