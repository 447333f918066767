"""Records as plain data for JSON, and back; data that do not fit a record's types raise a PlanError with the reason."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

import msgspec
import numpy as np

from redenvelope.errors import PlanError

Record = TypeVar("Record")

_NUMBER = "number"
# JSON has no infinities and no NaN; an object with this single key cannot be mistaken for text.
_NAMES = {"infinity": math.inf, "-infinity": -math.inf, "not a number": math.nan}


def to_plain(value: Any) -> Any:
    """A record (dataclasses, tuples, numbers, text) as data that JSON can represent."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset | np.ndarray):
        return [to_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        name = "not a number" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
        return {_NUMBER: name}
    return value


def decoded(content: bytes, what: str) -> dict[str, Any]:
    """A JSON object, decoded; anything else is an error that calls the content `what`."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"{what} is damaged ({error})") from None
    if not isinstance(found, dict):
        raise PlanError(f"{what} is damaged: it is not a JSON object")
    return found


def from_plain(kind: type[Record], content: Any, what: str) -> Record:
    """The record that `to_plain` wrote; an error calls it `what`."""
    try:
        return msgspec.convert(_with_numbers(content), kind, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise PlanError(f"{what} is damaged: {error}") from None


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_NUMBER} and isinstance(value[_NUMBER], str):
            return _NAMES.get(value[_NUMBER], value)
        return {key: _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value
