from redenvelope.models.training import NeuralSettings


def test_large_logs_need_no_ensemble() -> None:
    settings = NeuralSettings()
    assert [settings.members_for(rows) for rows in (100, 39_999, 40_000, 10**7)] == [4, 4, 1, 1]
    assert NeuralSettings(members=2).members_for(10**7) == 2
