"""What two versions of the code gave for the same log, side by side: numbers to the last bit, sentences counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors.numpy import load_file

COMMANDS = ("audit", "fit", "reprice", "frontier", "evaluate", "allocate")
PROSE = frozenset({"message", "note", "remedy", "verdicts", "reasons", "rules", "examples"})
"""Keys whose texts are for people."""
MARKS = frozenset({"policy_sha256", "fold_sha256"})
"""Keys that say how something is written, and no result."""
CERTIFICATE = ("status", "reasons", "budget", "dual", "method", "confidence", "cost", "reward", "logged", "diagnostics")
CERTIFICATE += ("users", "budgets", "target_reward")


class Differences(dict[str, list[tuple[float, str]]]):
    """What differs, by document: how much (infinity for what is no number) and where; sentences are counted."""

    values = 0
    prose = 0

    def see(self, document: str, place: str, old: Any, new: Any) -> None:
        """Compare two values."""
        self.values += 1
        if type(old) is type(new) and (repr(old) == repr(new)):
            return
        if place.split(".")[-1] in PROSE and isinstance(old, str) and isinstance(new, str):
            self.prose += 1
            return
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new))
        self.setdefault(document, []).append(
            (_relative(np.array([old]), np.array([new])) if numbers else np.inf, place)
        )

    def see_arrays(self, document: str, place: str, old: NDArray[Any], new: NDArray[Any]) -> None:
        """Compare two arrays to the last bit."""
        self.values += old.size
        alike = old.shape == new.shape and old.dtype == new.dtype
        if alike and old.tobytes() == new.tobytes():
            return
        numbers = alike and old.dtype.kind in "fiu"
        self.setdefault(document, []).append((_relative(old, new) if numbers else np.inf, place))

    def __str__(self) -> str:
        told = []
        for document, found in self.items():
            numbers = [each for each in found if np.isfinite(each[0])]
            others = [place for amount, place in found if not np.isfinite(amount)]
            said = []
            if numbers:
                amount, place = max(numbers)
                said.append(f"{len(numbers)} by at most {amount:.2g} (at {place})")
            if others:
                said.append(f"{len(others)} not by a number (as {others[0]})")
            told.append(f"{document}: {' and '.join(said)}")
        verdict = "DIFFERS: " + "; ".join(told) if told else "same"
        return verdict + (f" ({self.prose} texts worded anew)" if self.prose else "")


def _relative(old: NDArray[Any], new: NDArray[Any]) -> float:
    old, new = old.astype(float), new.astype(float)
    size = np.maximum(np.abs(old), np.abs(new))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where((old == new) | (np.isnan(old) & np.isnan(new)), 0.0, np.abs(old - new) / size)
    return float(np.nan_to_num(share, nan=np.inf).max(initial=0.0))


def _leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document with its place, and the length of every list; a list of sentences is one text."""
    key = place.rpartition(".")[2]
    if isinstance(value, dict):
        if "reasons" in value:  # their rules and weights stand in them or beside them
            reasons = [*value["reasons"], *value.get("rules", ())]
            grounds = [f"{each['rule']}: {each['weight']}" for each in reasons if isinstance(each, dict)]
            texts = [each["message"] if isinstance(each, dict) else each for each in value["reasons"]]
            value = {name: each for name, each in value.items() if name != "rules"}
            value |= {"grounds": grounds, "reasons": texts}
        for name, each in value.items():
            if name not in MARKS:
                yield from _leaves(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list) and key in PROSE and all(isinstance(each, str) for each in value):
        yield place, "\n".join(value)
    elif isinstance(value, list):
        yield f"{place}.length", len(value)
        for number, each in enumerate(value):
            yield from _leaves(each, f"{place}[{number}]")
    else:
        yield place, value


def document(path: Path) -> dict[str, Any]:
    """What a file of JSON holds by place; nothing where it is no JSON, as the output of a command that was refused."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if path.name == "certificate.json":
        content = {name: content.get(name) for name in (*CERTIFICATE, "rules") if name in content}
    return dict(_leaves(content))


def _frontiers(plan: Path) -> dict[str, pl.DataFrame]:
    """The frontier of every budget by name, its points in an order of their own."""
    files = [plan / name for name in ("frontiers.parquet", "frontier.parquet") if (plan / name).exists()]
    if not files:
        return {}
    frame = pl.read_parquet(files[0])
    if "budget" not in frame.columns or frame["budget"].n_unique() < 2:
        return {"": frame}
    return {str(name): part for (name,), part in frame.group_by("budget", maintain_order=True)}


def _decisions(folder: Path) -> pl.DataFrame:
    files = sorted(folder.glob("decisions.parquet")) + sorted(folder.glob("decisions/*.parquet"))
    return pl.concat([pl.read_parquet(path) for path in files]) if files else pl.DataFrame()


def _see_frames(found: Differences, document: str, old: pl.DataFrame, new: pl.DataFrame, columns: list[str]) -> None:
    for column in columns:
        if column not in new.columns:
            found.see(document, column, "a column", "none")
        elif not old.schema[column].is_numeric() or not new.schema[column].is_numeric():
            found.see(document, column, old[column].to_list(), new[column].to_list())
        else:
            found.see_arrays(document, column, old[column].to_numpy(), new[column].to_numpy())


def _see_weights(found: Differences, document: str, old: Path, new: Path) -> None:
    """Compare arrays by what they hold, whatever their names; of the rest, those of one name or else of one shape."""
    before, after = (load_file(path) if path.exists() else {} for path in (old, new))
    found.see(document, "number of arrays", len(before), len(after))
    for name, array in list(before.items()):
        twin = next((other for other in after if _bits(after[other]) == _bits(array)), None)
        if twin is not None:
            found.see_arrays(document, name, before.pop(name), after.pop(twin))
    for name, array in before.items():
        like = [other for other in after if after[other].shape == array.shape]
        place = name if name in after or not like else like[0]
        found.see_arrays(document, name, array, after.pop(place, np.empty(0)))


def _bits(array: NDArray[Any]) -> tuple[str, tuple[int, ...], bytes]:
    return str(array.dtype), array.shape, array.tobytes()


def compare(old: Path, new: Path) -> Differences:
    """All that differs between the results of two versions for a log."""
    found = Differences()
    documents = ["codes.json", *(f"{name}.json" for name in COMMANDS)]
    documents += [f"{plan}/certificate.json" for plan in ("plan", "repriced")]
    for name in documents:
        before, after = document(old / name), document(new / name)
        for place, value in before.items():
            found.see(name, place, value, after.get(place, "nothing"))
        if after and not before:
            found.see(name, "all of it", "nothing", "something")
    for name in COMMANDS:
        found.prose += (old / f"{name}.txt").read_text() != (new / f"{name}.txt").read_text()
    for plan in ("plan", "repriced"):
        before, after = _frontiers(old / plan), _frontiers(new / plan)
        found.see(f"{plan}/frontier", "budgets", sorted(before), sorted(after))
        for budget in before.keys() & after.keys():
            both = [name for name in before[budget].columns if name in after[budget].columns and name != "budget"]
            missing = {"dual", "cost", "reward"} - set(both)
            tables = [table[budget].sort(both) for table in (before, after)]
            _see_frames(found, f"{plan}/frontier {budget}".strip(), *tables, [*both, *sorted(missing)])
        _see_weights(found, f"{plan}/weights", old / plan / "weights.safetensors", new / plan / "weights.safetensors")
    before, after = _decisions(old), _decisions(new)
    found.see("decisions", "rows", before.height, after.height)
    _see_frames(found, "decisions", before, after, before.columns)
    return found
