from redenvelope.models.training import NeuralSettings


def test_large_logs_need_no_ensemble() -> None:
    settings = NeuralSettings()
    assert [settings.members_for(users) for users in (100, 7_999, 8_000, 10**7)] == [4, 4, 1, 1]
    assert NeuralSettings(members=2).members_for(10**7) == 2
