"""One campaign's coverage: the bounds of a policy's cost on fresh users, and the truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scipy.special import ndtri
from scipy.stats import skew

from trials.campaigns import campaign_of, deployed, quick_settings, recoded, truth_of
from trials.task import Task

CONFIDENCE = 0.95


def coverage(task: Task) -> dict[str, Any]:
    """The bounds of a blended policy's cost on fresh users, and the truth."""
    from redenvelope.evaluation.data import Extent
    from redenvelope.fitting.encoded import encode
    from redenvelope.fitting.holdout import encoded_data, priced_values
    from redenvelope.log.read import log_from_frame

    family, seed, users = task.family, task.seed, task.users
    processor = time.process_time()
    campaign = campaign_of(family, seed)
    policy, catalogue, decide = blended_policy(campaign, seed)
    log = recoded(log_from_frame(campaign.log(users, seed + 3_000_000)), catalogue)

    # Baselines until the campaign's end, as a certificate has them.
    encoded = encode(log, policy.encoder, policy.specification.steps)
    planned = priced_values(policy, policy.pricing.table, encoded)
    blended = planned._replace(probabilities=half_chance(planned.probabilities))
    data = encoded_data(encoded, [blended], Extent.of(log))
    truth = truth_of(campaign, catalogue.labels, decide)
    return {
        **task._asdict(),
        "true_cost": truth.cost,
        "truth_error": truth.cost_error,
        "fresh": bounds_of(data, seed),
        "processor_seconds": time.process_time() - processor,
    }


def blended_policy(campaign: Any, seed: int) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """A plan with a small model of other users, its catalogue, and a policy that is half that plan, half chance."""
    from redenvelope.fitting.encoded import encode
    from redenvelope.fitting.price_grid import grid_of_prices, temperature_for
    from redenvelope.fitting.settings import FitSettings, SearchSettings
    from redenvelope.log.encoding.encoder import Encoder
    from redenvelope.log.read import log_from_frame
    from redenvelope.models.dataset import Examples
    from redenvelope.models.fit import fit_neural
    from redenvelope.plan.policy import DeployedPolicy, ModelSource, PolicySpecification
    from redenvelope.policies.pricing import Pricing

    log = log_from_frame(campaign.log(4_000, seed + 2_000_000))
    encoder = Encoder.fit(log)
    small = replace(quick_settings(seed).neural, reward_structure="independent", cost_structure="independent")
    model = fit_neural(Examples.from_log(log, encoder), small, seed).model
    steps, settings = log.campaign_steps, SearchSettings()
    pilot_users = encode(log, encoder, steps).pilot_users(settings.pilot_users, seed)
    cold = PolicySpecification("planned", 2, 0.0, steps)
    policy = DeployedPolicy(cold, ModelSource(model), encoder, log.catalogue, Pricing.at(0.0))
    warm = replace(cold, temperature=temperature_for(policy, pilot_users, FitSettings()))
    policy = replace(policy, specification=warm)
    prices = grid_of_prices(policy, pilot_users, settings, settings.rungs)
    policy = replace(policy, pricing=Pricing.at(prices[len(prices) // 3]))
    asked = deployed(policy)
    return policy, log.catalogue, lambda frame, past: half_chance(asked(frame, past))


def half_chance(probabilities: Any) -> Any:
    """Half of some probabilities [..., actions], half those of drawing any action."""
    return 0.5 * probabilities + 0.5 / probabilities.shape[-1]


def bounds_of(data: Any, seed: int) -> dict[str, dict[str, Any]]:
    """Estimate and one-sided bounds of a policy's cost by estimator."""
    from redenvelope.evaluation.confidence import Spread, decided_by_few
    from redenvelope.evaluation.evaluate import evaluate_partitions
    from redenvelope.evaluation.marginalised import Marginalised

    found = {}
    for evaluation in evaluate_partitions([data], ["doubly_robust", Marginalised(seed=seed)]).values():
        added = evaluation.influence()[evaluation.place("cost"), :, 0]
        few = decided_by_few(float(added.max()), Spread.of(added))
        own = evaluation.estimate("cost", confidence=CONFIDENCE, side="upper")
        normal = own.estimate + float(ndtri(CONFIDENCE)) * own.standard_error
        found[evaluation.estimator.name] = {
            "estimate": own.estimate,
            "error": own.standard_error,
            "upper": own.upper,
            "bounds": {"normal": normal, "skewed": own.upper},
            "skewness": float(skew(added)),
            "refused": few is not None
            or any(reason.weight.value == "refusal" for reason in evaluation.reasons("cost")),
        }
    return found
