"""Tables of pandas are read column by column, whatever their types, and need no other package."""

import subprocess
import sys
from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest

from redenvelope import FiniteCampaign, Plan, UsageError
from redenvelope.log.formats.dataframes import to_polars
from tests.two_step_plan import campaign, log, plan, stages

__all__ = ["campaign", "log", "plan", "stages"]

LARGE = 2**60 + 1  # no 64-bit float holds it
BERLIN = ZoneInfo("Europe/Berlin")
MOMENTS = [datetime(2024, 1, 31, 12), None, datetime(2024, 7, 1, 0, 0, 1)]


def columns() -> dict[str, tuple[object, pl.DataType, list[object]]]:
    """By name: what pandas is given, and what polars has to make of it."""
    moments = pd.Series(MOMENTS, dtype="datetime64[ns]")
    berlin = [None if each is None else each.replace(tzinfo=BERLIN) for each in MOMENTS]
    east = [None if each is None else each.replace(tzinfo=ZoneInfo("Etc/GMT-2")) for each in MOMENTS]
    objects = pd.Series(["a", None, float("nan")], dtype=object)
    return {
        "int": (np.array([1, 2, 3], "int32"), pl.Int32(), [1, 2, 3]),
        "float": ([0.5, np.nan, 2.0], pl.Float64(), [0.5, None, 2.0]),
        "bool": ([True, False, True], pl.Boolean(), [True, False, True]),
        "Int64": (pd.array([LARGE, None, 3], "Int64"), pl.Int64(), [LARGE, None, 3]),
        "UInt8": (pd.array([1, 2, 255], "UInt8"), pl.UInt8(), [1, 2, 255]),
        "Float32": (pd.array([0.5, None, 2], "Float32"), pl.Float32(), [0.5, None, 2.0]),
        "boolean": (pd.array([True, None, False], "boolean"), pl.Boolean(), [True, None, False]),
        "str": (["ä", None, ""], pl.String(), ["ä", None, ""]),
        "string": (pd.array(["a", None, "c"], "string"), pl.String(), ["a", None, "c"]),
        "objects": (objects, pl.String(), ["a", None, None]),
        "flags": (pd.Series([True, None, False], dtype=object), pl.Boolean(), [True, None, False]),
        "mixed": (pd.Series([1, None, 2.5], dtype=object), pl.Float64(), [1.0, None, 2.5]),
        "nothing": (pd.Series([None, None, None], dtype=object), pl.Null(), [None, None, None]),
        "dates": ([date(2024, 1, 1), None, date(2024, 1, 3)], pl.Date(), [date(2024, 1, 1), None, date(2024, 1, 3)]),
        "lists": ([["a", "b"], None, []], pl.List(pl.String()), [["a", "b"], None, []]),
        "arrays": ([np.array(["a"]), None, np.array(["b", "c"])], pl.List(pl.String()), [["a"], None, ["b", "c"]]),
        "labels": (pd.Categorical(["x", None, "y"]), pl.String(), ["x", None, "y"]),
        "ordered": (pd.Categorical(["x", None, "y"], ["y", "x"], ordered=True), pl.String(), ["x", None, "y"]),
        "numbered": (pd.Categorical([5, None, 7]), pl.Int64(), [5, None, 7]),
        "moments": (moments, pl.Datetime("ns"), MOMENTS),
        "seconds": (moments.astype("datetime64[s]"), pl.Datetime("ms"), MOMENTS),
        "berlin": (moments.dt.tz_localize("Europe/Berlin"), pl.Datetime("ns", "Europe/Berlin"), berlin),
        "utc": (
            moments.dt.tz_localize("UTC"),
            pl.Datetime("ns", "UTC"),
            [None if each is None else each.replace(tzinfo=ZoneInfo("UTC")) for each in MOMENTS],
        ),
        "east": (moments.dt.tz_localize("+02:00"), pl.Datetime("ns", "Etc/GMT-2"), east),
        "hours": (
            pd.Series([1, None, 3], dtype="timedelta64[s]") * 3600,
            pl.Duration("ms"),
            [timedelta(hours=1), None, timedelta(hours=3)],
        ),
        "sparse": (pd.arrays.SparseArray([0.0, 0.0, 1.0]), pl.Float64(), [0.0, 0.0, 1.0]),
    }


def test_every_kind_of_column_comes_with_what_is_missing() -> None:
    wanted = columns()
    found = to_polars(pd.DataFrame({name: pd.Series(given) for name, (given, _, _) in wanted.items()}))
    assert found.columns == list(wanted)
    for name, (_, kind, values) in wanted.items():
        assert (found[name].dtype, found[name].to_list()) == (kind, values), name


def test_labels_of_rows_are_a_column_where_they_have_a_name() -> None:
    frame = pd.DataFrame({"user": [7, 8], "step": [0, 0], 3: [1, 2]})
    assert to_polars(frame.set_index("user")).to_dict(as_series=False) == {"user": [7, 8], "step": [0, 0], "3": [1, 2]}
    assert to_polars(frame.set_index(["user", "step"])).columns == ["user", "step", "3"]
    assert to_polars(frame.set_index("user", drop=False)).columns == ["user", "step", "3"]
    assert to_polars(frame.set_axis(["a", "b"])).columns == ["user", "step", "3"]


def test_columns_in_arrows_memory_stay_as_they_are() -> None:
    frame = pd.DataFrame({"label": ["a", None], "number": [1, None]})
    frame = frame.astype({"label": "string[pyarrow]", "number": "int64[pyarrow]"})
    assert to_polars(frame).to_dict(as_series=False) == {"label": ["a", None], "number": [1, None]}


@pytest.mark.parametrize("odd", [[1, "a"], [object(), None], [pd.Period("2024-01"), pd.Period("2024-02")]])
def test_a_column_that_cannot_be_read_is_named(odd: list[object]) -> None:
    with pytest.raises(UsageError, match=r"users cannot be read as a table.*'odd'"):
        to_polars(pd.DataFrame({"odd": pd.Series(odd)}), "users")


def test_names_that_stand_twice_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read as a table"):
        to_polars(pd.DataFrame([[1, 2]], columns=["user", "user"]))


WITHOUT_ARROW = """
import sys
sys.modules["pyarrow"] = None  # as if it were not installed
import pandas as pd
from redenvelope import Plan, log_from_frame
from tests.log.test_frames import test_every_kind_of_column_comes_with_what_is_missing as check

check()
users = pd.DataFrame({"user": pd.array([1, 2, 3], "Int64"), "step": [0, 0, 0], "state": pd.Categorical(["s0"] * 3)})
decisions, findings = Plan.load("plan").allocate(users)
assert decisions["user"].to_list() == [1, 2, 3] and findings == (), findings
log = pd.read_csv("log.csv")
assert len(log_from_frame(log)) == len(log)
assert sys.modules["pyarrow"] is None
"""


def test_a_table_of_pandas_needs_no_arrow(plan: Plan, campaign: FiniteCampaign, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan", {"report.html": b""})
    campaign.log(300, seed=5).write_csv(tmp_path / "log.csv")
    here = str(Path(__file__).parents[2])
    program = f"import sys; sys.path.insert(0, {here!r})\n{WITHOUT_ARROW}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
