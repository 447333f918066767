"""Drift: features that are not what they were in training, told from the states they are encoded to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.encode_table import state_places
from redenvelope.log.encoding import OTHER, Encoder
from redenvelope.log.findings import Finding, Findings

__all__ = ["drift_findings"]

# In training the standardised mean is 0. Half a standard deviation is far beyond chance and beyond most seasons.
_LARGEST_SHIFT = 0.5
_LARGEST_UNSEEN = 0.05  # share of rows


def drift_findings(encoder: Encoder, states: NDArray[np.float32]) -> tuple[Finding, ...]:
    """Numbers whose mean has moved, and categories whose labels are new, in states [rows, width]."""
    findings, places = Findings(), state_places(encoder.numbers, encoder.categories, encoder.layout)
    for number, column in zip(encoder.numbers, places.numbers, strict=True):
        # A binary is not standardised: it keeps its own scale, and its mean in training is not remembered.
        if number.binary:
            continue
        shift = float(states[:, column].mean(dtype=np.float64))
        if abs(shift) > _LARGEST_SHIFT:
            findings.add(
                "drift_number",
                column=number.name,
                count=len(states),
                mean=number.mean + shift * number.scale,
                before=number.mean,
                deviations=abs(shift),
            )
    for category, column in zip(encoder.categories, places.categories, strict=True):
        unseen = states[:, column] == (OTHER if category.static else 1.0)
        share = float(unseen.mean())
        if share > _LARGEST_UNSEEN:
            findings.add("drift_category", column=category.name, count=int(unseen.sum()), share=f"{share:.0%}")
    return findings.sorted()
