"""The envelopes campaign: its log against its laws, its optimum against a linear program written out apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import exp

import numpy as np
import polars as pl
import pytest
from experiments.random_campaigns import random_parameters

from redenvelope import EnvelopeCampaign, FiniteCampaign, FiniteProblem, ProblemError, UsageError, linear_program
from redenvelope.simulate.dynamics import EnvelopeParameters

CONTRACT = ["user", "step", "action", "propensity", "reward", "cost"]
STATIC = [
    "age", "tenure_days", "sessions", "balance", "days_since_purchase", "screen_size", "lucky_number",
    "city", "channel", "subscriber",
]  # fmt: skip
DYNAMIC = ["habit", "fatigue", "last_outcome"]
LABELS = ["none", "ignored", "used"]


def sleepy(frame: pl.DataFrame) -> np.ndarray:
    """A policy that looks at static and dynamic features and at the step."""
    generous = (frame["fatigue"] < 2) & (frame["balance"] < 60) & (frame["last_outcome"] != "ignored")
    dear = np.array([0.1, 0.1, 0.1, 0.3, 0.2, 0.2])
    cheap = np.array([0.6, 0.2, 0.1, 0.1, 0.0, 0.0])
    late = (frame["step"].to_numpy() >= 3)[:, None]
    return np.where(late, cheap, np.where(generous.to_numpy()[:, None], dear, cheap))


@pytest.fixture(scope="module")
def campaign() -> EnvelopeCampaign:
    return EnvelopeCampaign(population=300)


@pytest.fixture(scope="module")
def log(campaign: EnvelopeCampaign) -> pl.DataFrame:
    return campaign.log(20_000, seed=1)


def written_out(campaign: EnvelopeCampaign) -> FiniteProblem:
    """The campaign as one finite problem, state = (user, habit, fatigue, outcome), by plain loops."""
    truth, users = campaign.parameters, campaign.users
    names = list(product(range(len(users)), range(5), range(5), LABELS))
    number = {name: row for row, name in enumerate(names)}
    shape = (len(names), len(truth.amounts))
    rewards, costs, transitions = np.zeros(shape), np.zeros(shape), np.zeros((*shape, len(names)))
    initial = np.zeros(len(names))
    for user in range(len(users)):
        start = (user, int(users.habits[user]), int(users.fatigues[user]), "none")
        initial[number[start]] = 1 / len(users)
    for (user, habit, fatigue, outcome), (action, amount) in product(names, enumerate(truth.amounts)):
        row = number[user, habit, fatigue, outcome]
        logit = users.activity[user] + truth.habit_effect * habit - truth.fatigue_effect * fatigue
        logit += {"none": 0.0, "ignored": truth.ignored_effect, "used": truth.used_effect}[outcome]
        logit += users.lifts[user, action] * exp(-truth.fatigue_decay * fatigue)
        active = 1 / (1 + exp(-logit))
        share = users.consumption[user] if amount else 0.0
        rewards[row, action], costs[row, action] = active, active * share * amount
        tired = min(fatigue + 1, 4) if amount else max(fatigue - 1, 0)
        up, down = min(habit + 1, 4), max(habit - 1, 0)
        unused = "ignored" if amount else "none"
        for chance, left in ((active * share, "used"), (active * (1 - share), unused)):
            transitions[row, action, number[user, up, tired, left]] += chance * truth.habit_rise
            transitions[row, action, number[user, habit, tired, left]] += chance * (1 - truth.habit_rise)
        idle = 1 - active
        transitions[row, action, number[user, down, tired, unused]] += idle * truth.habit_fall
        transitions[row, action, number[user, habit, tired, unused]] += idle * (1 - truth.habit_fall)
    return FiniteProblem(rewards, costs, transitions, initial, truth.steps)


@pytest.mark.parametrize(
    "parameters",
    [EnvelopeParameters(steps=2), random_parameters(3), replace(random_parameters(4), amounts=(1, 2, 6))],
)
def test_optimum_and_bandit_equal_those_of_the_problem_written_out(parameters: EnvelopeParameters) -> None:
    campaign = EnvelopeCampaign(parameters, population=2, population_seed=7)
    problem = written_out(campaign)
    cheapest, dearest = campaign.cheapest().cost, campaign.dearest().cost
    for share in (0.05, 0.15, 0.4):
        budget = cheapest + share * (dearest - cheapest)
        optimum, truth = campaign.optimum(budget), linear_program(problem, budget)
        assert optimum.status == truth.status == "converged"
        assert optimum.reward == pytest.approx(truth.reward, rel=1e-9)
        assert optimum.cost == pytest.approx(truth.cost, rel=1e-9)
        bandit, myopic = campaign.bandit(budget), FiniteCampaign(problem).bandit(budget)
        assert bandit.reward == pytest.approx(myopic.reward, rel=1e-9)
        assert bandit.dual == pytest.approx(myopic.dual, rel=1e-6)
    slack = campaign.optimum(1e3)
    assert (slack.status, slack.dual) == ("budget_slack", 0.0)
    assert slack.reward == pytest.approx(linear_program(problem, 1e3).reward, rel=1e-12)


def test_value_equals_a_closed_loop_run(campaign: EnvelopeCampaign) -> None:
    value, run = campaign.value(sleepy), campaign.run(sleepy, users=40_000, seed=2)
    assert abs(run.cost - value.cost) < 4 * run.cost_error
    assert abs(run.reward - value.reward) < 4 * run.reward_error


def test_value_of_simple_policies_in_two_ways(campaign: EnvelopeCampaign) -> None:
    uniform = campaign.value(lambda frame: np.full((frame.height, 6), 1 / 6, dtype=np.float32))
    assert campaign.uniform().outcomes == pytest.approx(uniform.outcomes, rel=1e-12)
    dearest = campaign.value(lambda frame: np.tile(np.eye(6)[5], (frame.height, 1)))
    assert campaign.dearest().outcomes == pytest.approx(dearest.outcomes, rel=1e-12)
    assert campaign.cheapest().cost == 0


def test_policies_see_each_user_and_state_once(campaign: EnvelopeCampaign) -> None:
    seen = []

    def decide(frame: pl.DataFrame) -> np.ndarray:
        seen.append(frame)
        return sleepy(frame)

    campaign.value(decide)
    frame = pl.concat(seen)
    assert frame.columns == ["user", "step", *STATIC, *DYNAMIC]
    assert not frame.select("user", "step", *DYNAMIC).is_duplicated().any()
    first = frame.filter(step=0)
    assert first["user"].sort().to_list() == list(range(300))


def test_optimum_beats_the_bandit_beats_chance(campaign: EnvelopeCampaign) -> None:
    uniform, cheapest = campaign.uniform(), campaign.cheapest()
    rewards = []
    for budget in (1.0, 2.0, uniform.cost):
        optimum, bandit = campaign.optimum(budget), campaign.bandit(budget)
        blind = cheapest.reward + budget / uniform.cost * (uniform.reward - cheapest.reward)
        assert optimum.cost == bandit.cost == budget
        assert bandit.reward > blind
        # Planning ahead must matter in a campaign about habits, or nothing here tests it.
        assert optimum.reward - cheapest.reward > 1.1 * (bandit.reward - cheapest.reward)
        rewards.append(optimum.reward)
    assert rewards == sorted(rewards)


def test_no_policy_lies_above_the_price_of_the_optimum(campaign: EnvelopeCampaign) -> None:
    optimum = campaign.optimum(2.0)
    for value in (campaign.value(sleepy), campaign.uniform(), campaign.cheapest(), campaign.dearest()):
        assert value.reward <= optimum.reward + optimum.dual * (value.cost - 2.0)


@pytest.mark.parametrize("seed", range(3))
def test_random_variants_are_campaigns_too(seed: int) -> None:
    campaign = EnvelopeCampaign(random_parameters(seed), population=60)
    budget = campaign.uniform().cost / 3
    assert campaign.cheapest().reward < campaign.bandit(budget).reward <= campaign.optimum(budget).reward
    costs = campaign.log(4_000, 0).group_by("action").agg(pl.mean("cost")).sort("action")["cost"].to_list()
    assert costs == sorted(costs)
    assert random_parameters(seed) == random_parameters(seed) != random_parameters(seed + 100)


def test_log_has_the_contract_columns(log: pl.DataFrame) -> None:
    assert log.columns == [*CONTRACT, *STATIC, *DYNAMIC]
    assert log.height == 100_000
    assert log.select("user", "step").equals(log.select("user", "step").sort("user", "step"))
    assert log.null_count().select(pl.exclude("days_since_purchase")).sum_horizontal().item() == 0
    assert log["days_since_purchase"].null_count() / log.height == pytest.approx(0.15, abs=0.02)
    assert (log["city"].n_unique(), log["channel"].n_unique()) == (8, 3)
    assert log["subscriber"].dtype == pl.Boolean
    changed = log.group_by("user").agg(pl.col(STATIC).n_unique()).select(pl.col(STATIC).max())
    assert max(changed.row(0)) == 1


def test_log_pays_only_for_consumed_envelopes(log: pl.DataFrame) -> None:
    assert set(log["reward"].unique()) == {0.0, 1.0}
    amount = log["action"].cast(pl.Float64)
    assert ((log["cost"] == 0) | ((log["cost"] == amount) & (log["reward"] == 1))).all()
    assert log.filter(pl.col("cost") > 0).height > 10_000


def test_next_row_follows_from_this_one(log: pl.DataFrame) -> None:
    rows = log.with_columns(pl.col(DYNAMIC).shift(-1).over("user").name.prefix("next_")).drop_nulls("next_habit")
    assert rows.height == 80_000
    sent = pl.col("action") != "0"
    tired = pl.when(sent).then(pl.col("fatigue") + 1).otherwise(pl.col("fatigue") - 1).clip(0, 4)
    outcome = pl.when(~sent).then(pl.lit("none")).when(pl.col("cost") > 0).then(pl.lit("used"))
    moved = pl.when(pl.col("reward") > 0).then(pl.col("habit") + 1).otherwise(pl.col("habit") - 1).clip(0, 4)
    checks = rows.select(
        fatigue=(pl.col("next_fatigue") == tired).all(),
        outcome=(pl.col("next_last_outcome") == outcome.otherwise(pl.lit("ignored"))).all(),
        habit=((pl.col("next_habit") == moved) | (pl.col("next_habit") == pl.col("habit"))).all(),
    )
    assert checks.row(0) == (True, True, True)
    free = rows.filter((pl.col("reward") > 0) & (pl.col("habit") < 4))
    # Four standard errors of a share over some 35,000 rows.
    assert (free["next_habit"] > free["habit"]).mean() == pytest.approx(0.75, abs=4 * 0.5 / free.height**0.5)


def test_propensities_are_those_of_the_logging_policy(log: pl.DataFrame) -> None:
    assert log["propensity"].min() > 0.2 / 6
    assert log["propensity"].n_unique() > 50_000
    for label in ("0", "1", "2", "3", "5", "8"):
        weights = (1 / log["propensity"] * (log["action"] == label)).to_numpy()
        # E[1(action)/p] = 1 for every action, in any group that the action does not define.
        for group in (log["habit"] >= 2, log["channel"] == "app", log["step"] == 4):
            inside = weights[group.to_numpy()]
            assert abs(inside.mean() - 1) < 4 * inside.std() / np.sqrt(len(inside))


def test_weighted_log_tells_the_value_of_another_policy(campaign: EnvelopeCampaign) -> None:
    """Importance weighting of the log's first steps against exact evaluation on a large population."""
    short = replace(campaign, parameters=replace(campaign.parameters, steps=2), population=20_000)
    log = short.log(40_000, seed=3)
    table = sleepy(log.select("user", "step", *STATIC, *DYNAMIC))
    column = {label: row for row, label in enumerate(short.actions)}
    chosen = table[np.arange(log.height), [column[label] for label in log["action"]]]
    ratios = (chosen / log["propensity"].to_numpy()).reshape(-1, 2).cumprod(axis=1)
    value = short.value(sleepy)
    for name, truth in zip(("reward", "cost"), value.outcomes, strict=True):
        totals = (ratios * log[name].to_numpy().reshape(-1, 2)).sum(axis=1)
        # The population is a sample too; its error is far below that of the weighted log.
        assert abs(totals.mean() - truth) < 4 * totals.std() / np.sqrt(len(totals))


def test_seeds_decide_and_streams_differ(campaign: EnvelopeCampaign) -> None:
    assert campaign.log(500, 0).equals(campaign.log(500, 0))
    assert not campaign.log(500, 0).equals(campaign.log(500, 1))
    same_seed = replace(campaign, population=500, population_seed=0).users.features
    assert not same_seed.equals(campaign.log(500, 0).filter(step=0).select(same_seed.columns))


def test_noise_features_change_nothing_but_columns(campaign: EnvelopeCampaign) -> None:
    noisy = replace(campaign, extra_noise_features=3)
    log = noisy.log(100, 0)
    assert log.columns[-6:] == ["noise_0", "noise_1", "noise_2", *DYNAMIC]
    assert log.drop("noise_0", "noise_1", "noise_2").equals(campaign.log(100, 0))
    np.testing.assert_array_equal(noisy.uniform().outcomes, campaign.uniform().outcomes)


def test_nonsense_is_refused(campaign: EnvelopeCampaign) -> None:
    with pytest.raises(UsageError, match="at least one user"):
        campaign.log(0, 0)
    with pytest.raises(ProblemError, match="amounts"):
        EnvelopeParameters(amounts=(0, 2, 1))
    with pytest.raises(ProblemError, match="steps"):
        EnvelopeParameters(steps=0)
    with pytest.raises(ProblemError, match="between 0 and 1"):
        EnvelopeParameters(habit_rise=1.2)
