import numpy as np

from redenvelope.models.responses import STRUCTURES, allowed_structures, choose_structure, falls, ties


def draw(means: list[float], rows: int = 20_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    action = generator.integers(0, len(means), rows).astype(np.int32)
    value = (generator.random(rows) < np.array(means)[action]).astype(float)
    return value, action, np.full(rows, 1 / len(means))


def test_a_rising_response_contradicts_nothing() -> None:
    assert falls(*draw([0.2, 0.3, 0.3]), 3) == []
    assert allowed_structures([], STRUCTURES) == STRUCTURES


def test_a_clear_fall_rules_monotone_structures_out() -> None:
    found = falls(*draw([0.2, 0.4, 0.3]), 3)
    assert found == [(1, 2)]
    assert allowed_structures(found, STRUCTURES) == ("low_rank", "items", "independent")


def test_a_logger_that_spends_on_lazy_users_contradicts_nothing() -> None:
    generator = np.random.default_rng(1)
    lazy = generator.random(40_000) < 0.5
    chance_of_dear = np.where(lazy, 0.8, 0.2)
    dear = generator.random(40_000) < chance_of_dear
    propensity = np.where(dear, chance_of_dear, 1 - chance_of_dear)
    value = (generator.random(40_000) < np.where(lazy, 0.1, 0.6) + 0.05 * dear).astype(float)
    assert value[dear].mean() < value[~dear].mean() - 0.1
    assert falls(value, dear.astype(np.int32), propensity, 2) == []


def test_an_action_hardly_seen_proves_nothing() -> None:
    value = np.concatenate([np.ones(1000), np.zeros(5)])
    action = np.repeat([0, 1], [1000, 5]).astype(np.int32)
    assert falls(value, action, np.ones(1005), 2) == []


def test_actions_that_cost_the_same_have_no_order() -> None:
    _, action, propensity = draw([0.0] * 4)
    amounts = np.array([0.0, 0.1, 0.1, 0.2])
    assert ties(amounts[action], action, propensity, 4) == [(1, 2)]
    assert allowed_structures([(1, 2)], STRUCTURES) == ("low_rank", "items", "independent")
    redeemed = np.random.default_rng(2).random(len(action)) < 0.3
    assert ties(amounts[action] * redeemed, action, propensity, 4) == [(1, 2)]
    assert ties(0.1 * np.arange(4)[action] * redeemed, action, propensity, 4) == []


def test_a_rare_action_ties_with_none() -> None:
    action = np.repeat([0, 1], [1000, 5]).astype(np.int32)
    assert ties(np.zeros(1005), action, np.ones(1005), 2) == []


def test_a_clearly_better_structure_wins() -> None:
    noise = np.random.default_rng(0).random(10_000)
    choice = choose_structure("reward", {"dose": noise + 0.1, "low_rank": noise, "independent": noise + 0.2})
    assert choice.structure == "low_rank"
    assert "least loss" in choice.reason and "cumulative not tried" in choice.reason


def test_within_the_noise_the_structure_that_says_more_wins() -> None:
    generator = np.random.default_rng(0)
    noise = generator.random(10_000)
    losses = {"dose": noise + generator.normal(0.0002, 0.1, 10_000), "independent": noise}
    choice = choose_structure("cost", losses)
    assert choice.structure == "dose"
    assert "within one standard error" in choice.reason
