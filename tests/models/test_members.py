from redenvelope.models.fit import NeuralSettings, members_for


def test_large_logs_need_no_ensemble() -> None:
    assert NeuralSettings().members is None
    assert [members_for(users) for users in (100, 99_999, 100_000, 10**7)] == [4, 4, 1, 1]
