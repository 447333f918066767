"""What the rules leave of a log is counted, in rows and in users, and said in words."""

from types import SimpleNamespace

import numpy as np

from redenvelope import Encoder, Rule
from redenvelope.fitting.learn import campaign_terms, log_left, with_rules
from redenvelope.fitting.objective import objective_of
from tests.plan.rule_world import STEPS, breaks, small_log

ANY_BUDGET = objective_of(1.0, None, None, 0.95)


def test_rows_and_users_that_kept_the_rules_are_counted() -> None:
    log = small_log()
    rules = (Rule(("push",), at_most=1), Rule(("10 off",), only_where="tenure >= 30"))
    eligible = campaign_terms(ANY_BUDGET, rules, log, Encoder.fit(log)).eligible(log)
    assert eligible is not None
    labels = [log.catalogue.labels[action] for action in log.action]
    tenure = log.features.numeric[:, log.features.numeric_names.index("tenure")]
    kept = np.array(
        [
            not breaks(rules, {"tenure": tenure[row]}, labels[log.starts[log.user_of_row[row]] : row], labels[row])
            for row in range(len(log))
        ]
    )
    assert (eligible[np.arange(len(log)), log.action] == kept).all()
    (finding,) = log_left(log, eligible)
    users = int(kept.reshape(-1, STEPS).all(axis=1).sum())
    assert finding.count == (~kept).sum() and 0 < users < len(log.users)
    assert (
        f"{kept.sum():,} rows ({kept.mean():.0%}) and the complete histories of {users:,} of {len(log.users):,} users"
        in finding.message
    )


def test_a_log_that_kept_the_rules_is_not_spoken_of() -> None:
    log = small_log()
    assert log_left(log, np.ones((len(log), len(log.catalogue)), dtype=bool)) == ()
    terms = campaign_terms(ANY_BUDGET, (), log, Encoder.fit(log))
    audit = SimpleNamespace(findings=())
    assert with_rules(audit, log, terms.eligible(log)) is audit  # type: ignore[arg-type]
