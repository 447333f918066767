"""Whether the model may be believed: predicted against observed, action by action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redenvelope.models.fidelity import OutcomeFidelity
from redenvelope.report.drawing import ACCENT, HALF, INK, draw, layered, values
from redenvelope.report.markup import Chart, number

__all__ = ["prediction_chart"]

_TWO_SIDED_95 = 1.96


def prediction_chart(outcome: str, fidelity: OutcomeFidelity, labels: Sequence[str]) -> Chart:
    """Predicted and observed mean of each action, on users who did not train the model."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    for part in fidelity.actions:
        label, reach = labels[part.action], _TWO_SIDED_95 * part.standard_error
        shared = {"action": label, "lower": part.observed - reach, "upper": part.observed + reach}
        for kind, value in (("observed", part.observed), ("predicted", part.predicted)):
            note = f"{label}: {kind} {number(value)} over {number(part.rows)} rows"
            rows.append({**shared, "kind": kind, "value": value, "note": note})
    action = alt.Y("action:N", title=None, sort=None, axis=alt.Axis(grid=True))
    mean = alt.X("value:Q", title=f"mean {outcome} a decision", axis=alt.Axis(tickCount=4))
    colour = alt.Color("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=[INK, ACCENT]))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=["circle", "diamond"]))
    size = alt.Size("kind:N", scale=alt.Scale(domain=["observed", "predicted"], range=[70, 60]))
    chart = alt.Chart(values(rows))
    drawn = layered(
        chart.mark_rule(strokeWidth=3, opacity=0.35, color=INK, aria=False).encode(
            y=action, x=alt.X("lower:Q", title=f"mean {outcome} a decision"), x2="upper:Q"
        ),
        chart.mark_point(filled=True, opacity=1).encode(
            y=action, x=mean, color=colour, shape=shape, size=size, description="note:N"
        ),
    )
    apart = [row for row in rows if row["kind"] == "predicted" and not row["lower"] <= row["value"] <= row["upper"]]
    count = len(fidelity.actions)
    verdict = (
        "all predictions lie within the intervals"
        if not apart
        else f"{len(apart)} of {count} predictions lie outside of the 95 % interval of what happened"
    )
    height = 70 + 30 * count
    caption = f"By cost; a diamond on its dot is an action the model prices right: {verdict}."
    return Chart(f"Predicted and observed {outcome}", caption, draw(drawn, HALF, height))
