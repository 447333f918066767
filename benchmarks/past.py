"""Is a past that matters told from a state that tells all? The score test on campaigns of every family, without a fit.

Prints in how many campaigns the past is plain (`models/past_effects.py`), and the least and the greatest score of each
with the share that goes with it. It should be plain where a habit is hidden or costs come late (weak opposite habits
may be missed), elsewhere in none.
"""

from __future__ import annotations

import argparse

from redenvelope.log.encoding.encoder import Encoder
from redenvelope.log.log import split
from redenvelope.log.read import log_from_frame
from redenvelope.models.dataset import Examples
from redenvelope.models.past_effects import PastScore, past_scores
from trials.campaigns import campaign_of
from trials.families.registry import FAMILIES


def scores(family: str, seed: int) -> tuple[PastScore, ...]:
    """Of a campaign's users who would train."""
    train = split(log_from_frame(campaign_of(family, seed).log(FAMILIES[family].users, seed)), seed=seed)[0]
    return past_scores(Examples.from_log(train, Encoder.fit(train).with_history(train)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--campaigns", type=int, default=30, help="of each family")
    parser.add_argument("--first", type=int, default=8_000, help="seed of the first campaign")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--quick", action="store_true", help="3 campaigns of each")
    arguments = parser.parse_args()
    count = 3 if arguments.quick else arguments.campaigns
    for family in arguments.families:
        found = [scores(family, seed) for seed in range(arguments.first, arguments.first + count)]
        plain = sum(any(score.is_plain for score in own) for own in found)
        most = sorted((max(own, key=lambda score: score.errors) for own in found), key=lambda score: score.errors)
        least, greatest = (f"{score.errors:.1f} ({score.share:.4f})" for score in (most[0], most[-1]))
        print(f"{family:18} plain in {plain} of {count}; scores from {least} to {greatest}", flush=True)


if __name__ == "__main__":
    main()
