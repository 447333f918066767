"""Campaign files through the real command: all mistakes at once, before anything is learned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program import run_here as run
from tests.test_cli import assert_refused


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("campaign") / "log.parquet"
    assert run("simulate", "envelopes", "--users", 400, "--out", path).returncode == 0
    return path


def refused(log: Path, content: str, *words: str) -> None:
    campaign = log.parent / "mistaken.toml"
    campaign.write_text(content, encoding="utf-8")
    assert_refused(run("fit", log, "--campaign", campaign, "--out", log.parent / "plan"), *words)
    assert not (log.parent / "plan").exists()


def test_mistakes_of_the_file_are_said_together(log: Path) -> None:
    refused(
        log,
        'audiance = 7\n[[budget]]\nname = "a"\nper_user = -1\n[[rule]]\nactions = [8]\nonly_where = "tenure_days >="\n'
        "[explore]\nshare = 3\n[colums]\nx = 1\n",
        "mistaken.toml: 5 mistakes",
        "'audiance' is not an entry of a campaign file; did you mean audience?",
        "'colums' is not an entry of a campaign file; did you mean [columns]?",
        "[[budget]] 1, per_user: must be a number of at least 0",
        "[[rule]] 1, only_where: cannot be read: character 15",
        "[explore], share: must be a share from 0 to 1",
    )


def test_mistakes_that_the_log_shows_are_said_together(log: Path) -> None:
    refused(
        log,
        '[[budget]]\nname = "a"\nper_user = 4\n[[rule]]\nactions = [8]\nonly_where = "tenure_dais >= 30"\n'
        "[[rule]]\nactions = [9]\nat_most = 1\n",
        "2 mistakes",
        "[[rule]] 1, only_where: the log has no column 'tenure_dais'; did you mean 'tenure_days'?",
        "[[rule]] 2, actions: the log has no action '9'",
    )


def test_rules_that_leave_nothing_are_refused(log: Path) -> None:
    refused(
        log,
        '[[budget]]\nname = "a"\nper_user = 4\n[[rule]]\nactions = [0, 1, 2, 3, 5, 8]\nonly_where = "subscriber"\n',
        "the rules leave no eligible action in",
        "keep one action, such as sending nothing, free of only_where",
    )
