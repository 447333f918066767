"""One campaign's check on the check: a hard plan of a small model, and whether the past that it knows is enough."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from trials.campaigns import campaign_of, recoded
from trials.coverage import blended_policy


def doubts(task: tuple[str, int, int]) -> dict[str, Any]:
    """Which estimate of a plan's cost may be relied on, on fresh users, and by how much the others differ."""
    from redenvelope.evaluation.data import Extent
    from redenvelope.evaluation.evaluate import agreement, checking_estimators, choose_estimator, evaluate_partitions
    from redenvelope.evaluation.marginalised import Marginalised
    from redenvelope.fitting.encoded import encode
    from redenvelope.fitting.holdout import encoded_data, priced_values
    from redenvelope.fitting.price_grid import grid_of_prices
    from redenvelope.fitting.settings import SearchSettings
    from redenvelope.log.read import log_from_frame
    from redenvelope.policies.pricing import Pricing

    family, seed, users = task
    campaign = campaign_of(family, seed)
    policy, catalogue, _ = blended_policy(campaign, seed)
    log = recoded(log_from_frame(campaign.log(users, seed + 3_000_000)), catalogue)
    encoded = encode(log, policy.encoder, policy.specification.steps)
    prices = grid_of_prices(policy, encoded.pilot_users(500, seed), SearchSettings(), 64)
    policy = replace(policy, pricing=Pricing.at(prices[len(prices) // 3]))
    checked = Marginalised(seed=seed)
    others = checking_estimators(checked, policy.specification.steps)
    extent = Extent.of(log)
    parts = [
        encoded_data(batch, [priced_values(policy, policy.pricing.table, batch)], extent) for batch in encoded.batches()
    ]
    found = evaluate_partitions(parts, [checked, *others])
    first, sequential = found[checked.name], found["doubly_robust"]
    pairs = [outcome[0] for other in others for outcome in agreement(first, found[other.name])]
    said = choose_estimator(pairs, sequential.reasons("cost"))
    return {"rely_on": said.rely_on, "agreements": [asdict(each) | {"z": each.z} for each in said.agreements]}
