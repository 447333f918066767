"""The helper's own assertions explain themselves, as those of the tests do."""

from __future__ import annotations
