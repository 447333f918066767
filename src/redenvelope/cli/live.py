"""The live part of the demo: a service, simulated users who ask it over HTTP, and what came of it."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import typer

from redenvelope.ledger.ledger import open_ledger
from redenvelope.ledger.records import Fund
from redenvelope.plan.plan import Plan
from redenvelope.serve.server import serving
from redenvelope.serve.service import Service
from redenvelope.serve.settings import ServeSettings
from redenvelope.simulate.envelopes import EnvelopeCampaign, EnvelopeCrowd

_TOGETHER = 20
"""Users who walk in at the same time."""


def go_live(campaign: EnvelopeCampaign, plan: Plan, out: Path, budget: float, crowd: int, seconds: float) -> None:
    """Serve a plan to a crowd that redeems more often than the log said, for about so many seconds."""
    ledger = out / "ledger.db"
    for old in (ledger, ledger.with_name("ledger.db-wal"), ledger.with_name("ledger.db-shm")):
        old.unlink(missing_ok=True)  # of an earlier demo
    settings = ServeSettings(audience=crowd)
    total = round(100 * budget * crowd)
    service = Service(out / "plan", open_ledger(f"sqlite:///{ledger}", seed=0), [Fund("budget", total, 0)], settings)
    people = EnvelopeCrowd(campaign, crowd, seed=7, consumption=1.2)
    with serving(service) as port, closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        typer.echo(
            f"4. live: {crowd:,} users who redeem a fifth more often than the log said; watch http://127.0.0.1:{port}/"
        )
        earned = _walk_in(people, plan, connection, campaign.steps, seconds)
        found = _answered(connection, "GET", "/v1/campaign")
    money = found["budgets"][0]
    optimum = campaign.optimum(budget)
    typer.echo(
        f"spent {money['spent'] / 100:,.2f} of {total / 100:,.2f} ({money['spent'] / total:.1%}), never above; "
        f"{len(found['price_notes'])} changes of the price"
    )
    typer.echo(
        f"earned {earned / crowd:.4g} per user; the plan said {plan.certificate.reward.estimate:.4g} for "
        f"{plan.certificate.cost.estimate:.4g} per user, and the optimum of the campaign as it was logged is "
        f"{optimum.reward:.4g} for {optimum.cost:.4g}"
    )
    typer.echo(f"redenvelope ledger verify sqlite:///{ledger}")


def _walk_in(people: Any, plan: Plan, connection: http.client.HTTPConnection, steps: int, seconds: float) -> float:
    """Everybody decided for and settled, over HTTP; the reward that was earned."""
    places = {float(label): place for place, label in enumerate(plan.catalogue.labels)}
    earned, began = 0.0, time.monotonic()
    for first in range(0, len(people), _TOGETHER):
        rows = np.arange(first, min(first + _TOGETHER, len(people)))
        for step in range(steps):
            requests = [
                {"request_id": f"{row}-{step}", "user": int(row), "features": features}
                for row, features in zip(rows, people.seen(rows, step), strict=True)
            ]
            answers = _answered(connection, "POST", "/v1/decisions/batch", {"decisions": requests})["answers"]
            given = np.array([places[float(answer["action"])] for answer in answers])
            rewards, costs = people.happen(rows, given)
            outcomes = [
                {"decision_id": answer["decision_id"], "reward": reward, "amount": round(100 * cost)}
                for answer, reward, cost in zip(answers, rewards.tolist(), costs.tolist(), strict=True)
            ]
            _answered(connection, "POST", "/v1/outcomes/batch", {"outcomes": outcomes})
            earned += float(rewards.sum())
        time.sleep(max(0.0, seconds * rows[-1] / len(people) - (time.monotonic() - began)))
    return earned


def _answered(connection: http.client.HTTPConnection, method: str, path: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content)
    connection.request(method, path, body, {"content-type": "application/json"})
    return json.loads(connection.getresponse().read())
