from redenvelope.models.training import NeuralSettings


def test_large_logs_need_no_ensemble() -> None:
    settings = NeuralSettings()
    assert [settings.members_for(rows, 5) for rows in (100, 39_999, 40_000, 10**7)] == [4, 4, 1, 1]
    assert NeuralSettings(members=3).members_for(10**7, 5) == 3


def test_decisions_of_one_step_are_judged_by_users_of_two_members() -> None:
    settings = NeuralSettings()
    rows = (100, 9_999, 10_000, 39_999, 40_000, 159_999, 160_000)
    assert [settings.members_for(each, 1) for each in rows] == [8, 8, 4, 4, 2, 2, 1]
