"""Drift: features whose distribution differs from that in training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.encoding.layout import CategoryEncoding
from redenvelope.log.encoding.table import report_outside, state_places
from redenvelope.log.findings import EXAMPLES, Finding, Findings
from redenvelope.log.log import FeatureTable

# In training the standardised mean is 0. Half a standard deviation is far beyond chance and beyond most seasons.
_LARGEST_SHIFT = 0.5
_LARGEST_UNSEEN = 0.05  # share of rows


def drift_findings(encoder: Encoder, states: NDArray[np.float32], features: FeatureTable) -> tuple[Finding, ...]:
    """Numbers whose mean has moved or that are outside of what training saw, and categories whose labels are new.

    `states` [rows, width] are those of the features.
    """
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
    for number in encoder.numbers:
        if number.name in features.numeric_names:
            report_outside(number, features.numeric[:, features.numeric_names.index(number.name)], findings)
    for category in encoder.categories:
        if category.name in features.category_names:
            _report_labels(category, features, findings)
    return findings.sorted()


def _report_labels(category: CategoryEncoding, features: FeatureTable, findings: Findings) -> None:
    """Labels that training never saw, where they are many; few are named as at any decision."""
    column = features.category_names.index(category.name)
    known = {*category.labels, *category.rare}
    unseen = np.array([label not in known for label in features.labels[column]] + [False])
    rows = np.flatnonzero(unseen[features.codes[:, column]])
    if not len(rows):
        return
    labels = [features.labels[column][code] for code in np.unique(features.codes[rows, column])[:EXAMPLES]]
    share = len(rows) / len(features.codes)
    rule = "drift_category" if share > _LARGEST_UNSEEN else "serving_unseen_label"
    findings.add(rule, column=category.name, count=len(rows), examples=labels, share=f"{share:.0%}")
