"""Databases by URL, read and written through ADBC drivers.

`postgresql://USER@HOST/DATABASE?table=offers`, `duckdb:///FILE?query=SELECT …`, `sqlite:///FILE?table=…` (four slashes
before an absolute path), or any other scheme with an installed ADBC driver. Passwords come from the environment: from
the variables that the database's own tools read (PGPASSWORD, PGPASSFILE), or from `${NAME}` in the URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import polars as pl
import polars.selectors as cs

from redenvelope.errors import UsageError
from redenvelope.files import is_address
from redenvelope.log.columns import column, put_back
from redenvelope.log.eligibility import BETWEEN

_STORES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "hf", "http", "https", "file")
_FILES = ("duckdb", "sqlite")
"""Databases that are stored in a file."""
_SECRET = re.compile(r"passw|pwd|token|secret", flags=re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_MODES = ("create", "replace", "append")
_ADDED = "redenvelope_added"
"""A temporary table, for one transaction."""
_ROWS_AT_ONCE = 1_000_000
_FIRST_BATCH = 10**9  # rows; SQLite's driver infers types from the first batch, so it must contain all rows
_DIGITS = r"^-?[0-9]{1,18}$"
_HELP = "check the URL, and that the credentials are where the database's own tools expect them"


def is_database(source: object) -> bool:
    """Whether a source is the URL of a database."""
    return is_address(source) and str(source).partition("://")[0].lower() not in _STORES


def place_name(source: str | Path) -> str:
    """The name of a source for messages: its path, or its address without user, options and statement."""
    # The query of a web address may contain a signature.
    return str(_Place.of(str(source))) if is_database(source) else _unsigned(str(source))


def _unsigned(source: str) -> str:
    return source.partition("?")[0] if source.startswith(("http://", "https://")) else source


@dataclass(frozen=True)
class _Place:
    """A table or a statement in a database, parsed from a URL."""

    scheme: str
    where: str
    """User, host and database, or the path of a file."""
    options: tuple[tuple[str, str], ...]
    """Options of the driver."""
    table: str | None
    query: str | None
    mode: str

    @classmethod
    def of(cls, url: str) -> _Place:
        """Parse a URL. The statement comes last: it is everything after `query=`, percent-encoded or not."""
        before, asked, query = url.partition("query=")
        if asked and before[-1] not in "?&":
            before, asked, query = url, "", ""
        scheme, _, rest = before.partition("://")
        where, _, said = rest.partition("?")
        options = dict(parse_qsl(said.rstrip("&")))
        table, mode = options.pop("table", None), options.pop("mode", "create")
        statement = (query if re.search(r"\s", query) else unquote(query.replace("+", " "))).strip().rstrip(";")
        scheme = {"postgres": "postgresql"}.get(scheme.lower(), scheme.lower())
        found = cls(scheme, where, tuple(options.items()), table, statement or None, mode)
        written = where.rpartition("@")[0].partition(":")[2]
        secrets = [written, *(value for name, value in options.items() if _SECRET.search(name))]
        if any(_VARIABLE.sub("", secret) for secret in secrets):
            raise UsageError(
                f"{found}: a password in a URL can be read by everybody on this machine; leave it out, and set "
                "PGPASSWORD or PGPASSFILE, or write ${NAME} for the environment variable NAME (in single quotes)"
            )
        if mode not in _MODES:
            raise UsageError(f"{found}: mode={mode} is not known; write mode=create, mode=replace or mode=append")
        return found

    def __str__(self) -> str:
        what = f"table={self.table}" if self.table else "query=…"
        return f"{self.scheme}://{self.where.rpartition('@')[2]}?{what}"

    @property
    def statement(self) -> str:
        """The statement that reads the rows."""
        if (self.table is None) == (self.query is None):
            raise UsageError(f"{self}: say what to read: end the URL with ?table=NAME or ?query=SELECT … (one of them)")
        # With a line end, because drivers nest the statement in another, and it may end in a comment.
        return f"{self.query}\n" if self.query else f"SELECT * FROM {self.quoted}"

    @property
    def quoted(self) -> str:
        """The table's name, quoted for statements."""
        return ".".join(map(_quoted, (self.table or "").split(".")))

    def schema_and_table(self) -> tuple[str | None, str]:
        """The schema and the table to write to."""
        if not self.table or self.query:
            raise UsageError(f"{self}: decisions are written to a table; end the URL with ?table=NAME")
        schema, _, name = self.table.rpartition(".")
        return schema or None, name

    def address(self, secrets: list[str]) -> str:
        """The address for the driver, with environment variables filled in; their values are added to `secrets`."""

        def value(found: re.Match[str]) -> str:
            held = os.environ.get(found[1])
            if held is None:
                raise UsageError(f"{self}: the environment variable {found[1]} is not set")
            secrets.extend(filter(None, (held, quote(held, safe=""))))
            return quote(held, safe="")

        if self.scheme in _FILES:
            return unquote(_VARIABLE.sub(value, self.where)[1:])
        options = urlencode(self.options, quote_via=quote, safe="${}")
        url = f"{self.where}{'?' if options else ''}{options}"
        scheme = self.scheme.partition("+")[2] or self.scheme  # flightsql+grpc://…
        return _VARIABLE.sub(value, url if scheme == "snowflake" else f"{scheme}://{url}")


@contextmanager
def _opened(place: _Place, writes: bool) -> Iterator[Any]:
    """A cursor in a transaction, committed only if it `writes`; error messages are cleaned of secrets."""
    secrets = [os.environ[name] for name in ("PGPASSWORD",) if os.environ.get(name)]
    module = _driver(place)
    try:
        with _connected(module, place, place.address(secrets), writes) as connection, connection.cursor() as cursor:
            yield cursor
            if writes:
                connection.commit()
    except (module.Error, pl.exceptions.PanicException, pl.exceptions.PolarsError, OSError) as error:
        said = (str(error).strip().splitlines() or ["no answer"])[0]
        for secret in sorted(secrets, key=len, reverse=True):
            said = said.replace(secret, "…")
        if "month_day_nano_interval" in said:
            said = "a column is an interval; convert it in the statement, such as extract(epoch from …)"
        raise UsageError(f"{place}: {said[:400]}; {_HELP}") from None


def _driver(place: _Place) -> Any:
    name = place.scheme.partition("+")[0]
    try:
        return import_module(f"adbc_driver_{name}.dbapi")
    except ImportError:
        needed = "duckdb adbc-driver-manager" if name == "duckdb" else f"adbc-driver-{name}"
        asked = f"'redenvelope[sql]' or {needed}" if name in (*_FILES, "postgresql") else needed
        raise UsageError(
            f"{place}: no driver for {name}; run: pip install {asked} (of object stores, {', '.join(_STORES[:3])} and "
            "others are known)"
        ) from None


def _connected(module: Any, place: _Place, address: str, writes: bool) -> Any:
    if place.scheme not in _FILES:
        return module.connect(address)
    if not writes and not Path(address).is_file():
        raise UsageError(f"{place}: there is no file {address} (a path is written after three slashes)")
    if place.scheme == "sqlite":
        return module.connect(f"file:{quote(address)}?mode={'rwc' if writes else 'ro'}")
    told = {"path": address} | ({} if writes else {"access_mode": "READ_ONLY"})
    driver = import_module("adbc_driver_duckdb").driver_path()
    return import_module("adbc_driver_manager.dbapi").connect(driver, entrypoint="duckdb_adbc_init", db_kwargs=told)


# Reading: one statement, in a transaction that changes nothing.


def read_database(url: str) -> pl.DataFrame:
    """The rows of a table or a statement, in the types that they would have in a file."""
    place = _Place.of(url)
    statement = place.statement
    with _opened(place, writes=False) as cursor:
        if place.scheme == "postgresql":
            cursor.execute("SET TRANSACTION READ ONLY")
        declared = _declared(cursor, statement) if place.scheme == "sqlite" else {}
        cursor.execute(statement)
        frame = pl.DataFrame(cursor.fetch_arrow())
    frame = put_back(frame, {name: _plain(column(frame, name)) for name in frame.columns})
    return put_back(frame, {name: _as_declared(column(frame, name), kind) for name, kind in declared.items()})


def _plain(values: pl.Series) -> pl.Series:
    """Values of PostgreSQL's types in plain types: it returns decimals as text, and ids and enumerations as bytes."""
    kind = str(values.dtype)
    if kind.startswith("Extension"):
        values = values.ext.storage()
    if values.dtype == pl.String and "numeric" in kind:
        whole = values.str.contains(_DIGITS).all()
        long = not whole and values.str.contains(r"^-?[0-9]+$").all()
        return values if long else values.cast(pl.Int64 if whole else pl.Float64)
    if values.dtype != pl.Binary:
        return values
    if len(values) > values.null_count() and (values.bin.size() == 16).all():
        digits = values.bin.encode("hex")
        return digits.str.replace(r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")
    try:
        text = values.cast(pl.String)
    except pl.exceptions.PolarsError:
        return values
    return values if text.str.contains(r"[\x00-\x08]").any() else text


def _declared(cursor: Any, statement: str) -> dict[str, str]:
    """Column -> declared type, because SQLite stores booleans as integers and times as text."""
    cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_FIRST_BATCH)})
    cursor.execute(f"CREATE TEMP VIEW redenvelope_statement AS {statement}")
    cursor.execute("PRAGMA table_info(redenvelope_statement)")
    found = pl.DataFrame(cursor.fetch_arrow())
    return {name: kind.upper() for name, kind in found.select("name", "type").iter_rows() if kind}


def _as_declared(values: pl.Series, declared: str) -> pl.Series:
    """A column in its declared type, if all of its values fit."""
    if "BOOL" in declared and values.dtype == pl.Int64:
        return values.cast(pl.Boolean) if values.is_in([0, 1]).all() else values
    if re.search(r"\(\d+, *[1-9]", declared) and values.dtype == pl.Int64:
        return values.cast(pl.Float64)
    if ("DATE" in declared or "TIME" in declared) and values.dtype == pl.String:
        times = values.str.replace("T", " ", literal=True).str.to_datetime(time_unit="us", strict=False)
        if times.null_count() == values.null_count():
            return times.dt.date() if declared == "DATE" else times
    return values


# Writing: a table in one transaction, all or nothing.


def require_table(url: str) -> None:
    """Refuse a database that does not answer, and an existing table that is neither to be replaced nor appended to."""
    place = _Place.of(url)
    place.schema_and_table()
    if _exists(place) and place.mode == "create":
        raise UsageError(f"{place}: this table exists; name another, or add &mode=replace or &mode=append to the URL")


def _exists(place: _Place) -> bool:
    if place.scheme in _FILES and not Path(place.address([])).is_file():
        return False
    driver = _driver(place)
    with _opened(place, writes=False) as cursor:
        try:
            cursor.execute(f"SELECT * FROM {place.quoted} WHERE 1 = 0")
        except driver.Error:
            return False  # if something else is wrong, writing will report it
    return True


def write_database(url: str, rows: pl.LazyFrame) -> None:
    """Write rows to a table; readers see all of them or none."""
    place = _Place.of(url)
    schema, name = place.schema_and_table()
    # When appending to an existing table, the database converts each column to the table's type.
    added = place.mode == "append" and _exists(place)
    said = {"temporary": True} if added else {"db_schema_name": schema} if schema else {}
    mode = "replace" if place.mode == "replace" else "create"
    with _opened(place, writes=True) as cursor:
        for part in _slices(rows):
            cursor.adbc_ingest(_ADDED if added else name, part, mode=mode, **said)
            mode = "append"
        if added:
            names = ", ".join(_quoted(each) for each in rows.collect_schema().names())
            cursor.execute(f"INSERT INTO {place.quoted} ({names}) SELECT {names} FROM {_ADDED}")
            cursor.execute(f"DROP TABLE {_ADDED}")


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _slices(rows: pl.LazyFrame) -> Iterable[pl.DataFrame]:
    """The rows in slices, in types that all databases have."""
    unsigned, small = cs.by_dtype(pl.UInt64, pl.UInt32, pl.UInt16, pl.UInt8), cs.by_dtype(pl.Int8)
    plain = rows.with_columns(
        cs.list().list.join(BETWEEN), unsigned.cast(pl.Int64), small.cast(pl.Int16), cs.categorical().cast(pl.String)
    )
    for first in range(0, int(rows.select(pl.len()).collect().item()), _ROWS_AT_ONCE):
        yield plain.slice(first, _ROWS_AT_ONCE).collect()
