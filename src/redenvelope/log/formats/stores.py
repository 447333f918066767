"""Tables at addresses: Parquet in an object store (s3://…, gs://…, az://…), or a database (see `sql.py`).

Credentials, region and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, …), as for
the store's own tools. Failed requests are retried for half a minute; a request without an answer times out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from warnings import catch_warnings, simplefilter

import polars as pl

from redenvelope.errors import UsageError
from redenvelope.log.formats.sql import is_database, place_name, read_database

_PATIENCE = 300.0
"""Time limit of a request in seconds; a part of a file is one request."""

_REFUSED = re.compile(r"(status|error)\W+40[13]\b|forbidden|unauthorized|credential", re.IGNORECASE)
"""How stores say that the caller may not; the number alone also occurs in durations and ports."""

_FAILED = ("object-store error", "error sending request")


def scan_address(address: str, patience: float = _PATIENCE) -> pl.LazyFrame:
    """A scan of the Parquet at an address: an object, everything in a folder, or a pattern."""
    return pl.scan_parquet(address, storage_options=_options(address, patience))


def read_address(address: str) -> pl.DataFrame:
    """All rows of the Parquet at an address, or of a database's table or statement."""
    if is_database(address):
        return read_database(address)
    with store_failures(address):
        return scan_address(address).collect()


def require_parquet(address: str) -> None:
    """Refuse an address to write to that does not end as a Parquet object."""
    if not address.lower().endswith((".parquet", ".pq")):
        raise UsageError(
            f"{address}: decisions are written to an object store as one .parquet; end the address with it"
        )


def sink_address(rows: pl.LazyFrame, address: str, compression_level: int, patience: float = _PATIENCE) -> None:
    """Write rows as one object, which appears only once it is complete."""
    with store_failures(address):
        options = _options(address, patience)
        rows.sink_parquet(address, compression_level=compression_level, storage_options=options)


@contextmanager
def store_failures(address: str) -> Iterator[None]:
    """Within the block, a store's errors and timeouts become UsageErrors."""
    try:
        with catch_warnings():
            simplefilter("ignore", UserWarning)  # that the region was not set, but asked for
            yield
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        shown, said = place_name(address), (str(error).splitlines() or ["no answer"])[0].replace(address, "")
        raise UsageError(f"{shown}: {_remedy(error, said)} ({said.split('<?xml')[0][:300]})") from None


def _remedy(error: BaseException, said: str) -> str:
    if isinstance(error, FileNotFoundError) or "paths were empty" in said:
        return "there is no Parquet here; check the bucket and the path (a folder ends in /, a pattern has *.parquet)"
    if isinstance(error, PermissionError) or _REFUSED.search(said):
        return (
            "the store refuses; check that the credentials are where its own tools expect them (AWS_ACCESS_KEY_ID, …)"
        )
    if isinstance(error, TimeoutError | ConnectionError) or any(words in said for words in _FAILED):
        return "the store fails or does not answer, also when asked again; check the endpoint, or try again later"
    return "this cannot be read as Parquet, the only format that is read from an object store; convert it"


def _options(address: str, patience: float) -> dict[str, str] | None:
    local = address.partition("://")[0].lower() in ("file", "hf", "http", "https")
    return None if local else {"timeout": f"{patience:g}s"}
