"""Campaign files: what they say, and all of their mistakes at once."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from redenvelope import Budget, Campaign, ColumnMap, Log, Rule, UsageError, log_from_frame

WHOLE = """
audience = 50000
ignore = ["row_id"]
[columns]
user = "customer_id"
[[budget]]
name = "coupons"
column = "cost"
per_user = 4.0
[[budget]]
name = "pushes"
count = ["push", "push+coupon"]
total = 150000
[[budget]]
name = "first week"
steps = [0]
where = "segment == 'new'"
per_user = 1.5
[[rule]]
actions = ["10 € coupon"]
only_where = "tenure_days >= 30"
[[rule]]
actions = ["5 % off", "10 € coupon"]
at_most = 2
within = 3
[[rule]]
actions = ["push"]
cooldown = 2
[explore]
share = 0.05
"""


def written(folder: Path, content: str) -> Path:
    path = folder / "campaign.toml"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_file_says_what_python_says(tmp_path: Path) -> None:
    campaign = Campaign.from_toml(written(tmp_path, WHOLE))
    assert campaign == Campaign(
        columns=ColumnMap.parse("user=customer_id", "row_id"),
        budgets=(
            Budget("coupons", column="cost", per_user=4.0),
            Budget("pushes", count=("push", "push+coupon"), total=150_000),
            Budget("first week", steps=(0,), where="segment == 'new'", per_user=1.5),
        ),
        rules=(
            Rule(("10 € coupon",), only_where="tenure_days >= 30"),
            Rule(("5 % off", "10 € coupon"), at_most=2, within=3),
            Rule(("push",), cooldown=2),
        ),
        explore=0.05,
        audience=50_000,
    )
    assert campaign.limits == (4.0, 3.0, 1.5)
    assert [budget.summed for budget in campaign.budgets] == ["cost", None, "cost"]
    assert ColumnMap.from_toml(tmp_path / "campaign.toml") == campaign.columns
    assert (campaign.rules[2].most, campaign.rules[2].window) == (1, 3)
    assert Campaign.from_toml(written(tmp_path, "")) == Campaign()


def test_labels_that_are_numbers_may_be_written_as_such(tmp_path: Path) -> None:
    campaign = Campaign.from_toml(written(tmp_path, "[[rule]]\nactions = [5, 2.5]\nat_most = 1\n"))
    assert campaign.rules == (Rule(("5", "2.5"), at_most=1),)


MISTAKES = """
audience = 0
ignore = "x"
[[budget]]
name = ""
per_user = 1.0
total = 3
[[budget]]
name = "a"
column = "cost"
count = ["x", "x"]
[[budget]]
nmae = "b"
per_user = -1
audience = 3
steps = []
where = "x >"
[[budget]]
name = "c"
per_user = 1.0
[[budget]]
name = "c"
per_user = 2.0
[[rule]]
at_most = 1.5
[[rule]]
actions = ["x"]
only_where = "tenure >= "
cooldown = 0
[[rule]]
actions = "x"
within = 1
[[rule]]
actions = ["x"]
[explore]
share = 2
"""


def test_all_mistakes_are_said_at_once_with_their_places(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as said:
        Campaign.from_toml(written(tmp_path, MISTAKES))
    head, *lines = str(said.value).splitlines()
    assert head == f"{tmp_path / 'campaign.toml'}: {len(lines)} mistakes"
    for place in (
        "ignore must be a list",
        "[[budget]] 1, name: must be a non-empty text",
        "[[budget]] 1, total: per_user and total",
        "[[budget]] 2, count: names an action twice",
        "[[budget]] 2, count: a budget sums a column or counts",
        "[[budget]] 2: the budget has no amount",
        "[[budget]] 3, nmae: is not an entry",
        "[[budget]] 3, per_user: must be a number of at least 0",
        "[[budget]] 3, audience: an audience belongs to a total",
        "[[budget]] 3, steps: must be a list",
        "[[budget]] 3, where: cannot be read: character 4",
        "[[budget]] 3, name: a budget needs a name",
        "[[budget]] 2, name: 'c' is also the name of",
        "[[rule]] 1, actions: a rule needs the actions",
        "[[rule]] 1, at_most: must be a whole number",
        "[[rule]] 2, only_where: cannot be read: character 11",
        "[[rule]] 2, cooldown: the rule already has only_where",
        "[[rule]] 2, cooldown: must be a whole number of at least 1",
        "[[rule]] 3, actions: must be a list of action labels",
        "[[rule]] 3, within: must be a whole number of at least 2",
        "[[rule]] 3, within: within belongs to at_most",
        "[[rule]] 4: the rule has no restriction",
        "[explore], share: must be a share from 0 to 1",
        "audience: must be a whole number of users",
    ):
        assert any(place in line for line in lines), place


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("budgets = 3", "'budgets' is not an entry"),
        ("budget = 3", r"budget: must be a list of tables; write \[\[budget\]\]"),
        ("rule = [3]", r"rule: must be a list of tables"),
        ("explore = 0.05", r"\[explore\]: has one entry, share"),
        ("[explore]\nshare = true", "must be a share from 0 to 1"),
        ('[[budget]]\nname = "a"\ntotal = 10', r"\[\[budget\]\] 1, total: a total also needs the number of users"),
        (
            "\n".join(f'[[budget]]\nname = "{n}"\ncount = ["{n}"]\nper_user = 1' for n in range(9)),
            "9 budgets; at most 8 are allowed",
        ),
        ('[[budget]]\nname = "a"\nper_user = 1\n[[budget]]\nname = "b"\nper_user = 2', "limits the same cost as"),
    ],
)
def test_files_that_make_no_sense(content: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=complaint):
        Campaign.from_toml(written(tmp_path, content))


def small_log(users: int = 120) -> Log:
    rng = np.random.default_rng(0)
    rows = users * 3
    return log_from_frame(
        pl.DataFrame(
            {
                "user": np.repeat(np.arange(users), 3),
                "step": np.tile(np.arange(3), users),
                "action": rng.choice(["none", "push", "coupon"], rows),
                "propensity": np.full(rows, 1 / 3),
                "reward": rng.random(rows),
                "cost": rng.random(rows),
                "tenure_days": rng.integers(0, 60, rows).astype(float),
                "constant": np.ones(rows),
                "segment": rng.choice(["new", "old"], rows),
            }
        )
    )


def test_a_campaign_is_held_against_its_log() -> None:
    log = small_log()
    Campaign(rules=(Rule(("coupon",), only_where="tenure_days >= 30 and step > 0"),)).check(log)
    campaign = Campaign(
        budgets=(
            Budget("a", count=("psuh",), per_user=1),
            Budget("b", column="money", per_user=1),
            Budget("c", steps=(0, 7), per_user=1, where="segmnt == 'new'"),
        ),
        rules=(
            Rule(("gift",), only_where="segment > 3"),
            Rule(("push",), only_where="tenure_days == 'long' or constant == 1"),
        ),
    )
    with pytest.raises(UsageError) as said:
        campaign.check(log)
    for place in (
        "[[budget]] 1, count: the log has no action 'psuh'; did you mean 'push'?",
        "[[budget]] 2, column: the log has no column 'money'",
        "[[budget]] 3, steps: the campaign has no step 7; its steps run from 0 to 2",
        "[[budget]] 3, where: the log has no column 'segmnt'; did you mean 'segment'?",
        "[[rule]] 1, actions: the log has no action 'gift'",
        "[[rule]] 1, only_where: 'segment' holds texts",
        "[[rule]] 2, only_where: 'tenure_days' holds numbers",
        "[[rule]] 2, only_where: the column 'constant' was left out of the features (feature_constant)",
    ):
        assert place in str(said.value)
    assert len(str(said.value).splitlines()) == 9


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ((Rule(("none", "push", "coupon"), only_where="tenure_days >= 30"),), "leave no eligible action in"),
        ((Rule(("none", "push", "coupon"), at_most=2),), "every action is capped"),
        ((Rule(("none",), only_where="step == 0"), Rule(("push", "coupon"), cooldown=1)), "every action is capped"),
    ],
)
def test_rules_that_leave_a_user_with_nothing_are_refused(rules: tuple[Rule, ...], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Campaign(rules=rules).check(small_log())


@pytest.mark.parametrize(
    "rules",
    [
        (Rule(("none", "push", "coupon"), at_most=3),),
        (Rule(("none",), at_most=1), Rule(("push",), at_most=1), Rule(("coupon",), at_most=1)),
        (Rule(("push", "coupon"), cooldown=2), Rule(("coupon",), only_where="tenure_days >= 30")),
    ],
)
def test_rules_that_always_leave_something_pass(rules: tuple[Rule, ...]) -> None:
    Campaign(rules=rules).check(small_log())
