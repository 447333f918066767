"""The rules for files and their columns, before any value means something."""

from __future__ import annotations

from redenvelope.log.rule import Rule

__all__ = ["FILE_RULES"]

FILE_RULES = {
    "file_unreadable": Rule("error", "the file cannot be read: {reason}", "check the path and its permissions"),
    "file_empty": Rule("error", "the file is empty", "export it again, or leave it out"),
    "file_no_rows": Rule("error", "the file has a header but no rows", "export it again, or leave it out"),
    "file_truncated": Rule(
        "error",
        "the file is cut off or damaged: {reason}",
        "copy or export it again; do not repair it by hand",
    ),
    "file_kind": Rule(
        "error",
        "by how it begins, the file holds {held}, not {expected}",
        "export the table as parquet, CSV or TSV in UTF-8 (gzip is fine), and name it so",
    ),
    "file_too_large": Rule(
        "error",
        "reading the file needs about {needed} of memory, and {left} are left",
        "let fit and audit divide the log by user in a folder, with --work FOLDER; or bring more memory: parquet needs "
        "less than text, and less still with --ignore of long columns",
    ),
    "file_unpacks": Rule(
        "error",
        "{packed} unpack to more than {times} times as much: no log is packed so tightly",
        "check what the file holds; if it is a log, export it as parquet",
    ),
    "columns_too_many": Rule(
        "error",
        "the table has {count:,} columns, where {limit:,} are the most",
        "keep the features that a decision could depend on, one a column",
    ),
    "text_too_long": Rule(
        "error",
        "{count} value(s) are longer than 10,000 bytes: neither labels nor numbers",
        "leave the column out with --ignore {column}; if none should be so long, look for a quote that is never closed",
    ),
    "file_undecodable": Rule(
        "error",
        "the file holds bytes that are not UTF-8 text",
        "export it as UTF-8 (CSV UTF-8 in a spreadsheet)",
    ),
    "files_hidden": Rule(
        "repaired",
        "{count} table(s) are hidden, or lie in hidden folders (names that begin with . or _), and were not read",
        "nothing to do, or rename them if they are part of the log",
    ),
    "files_no_tables": Rule(
        "warning",
        "{count} file(s) in the folder are of kinds that are not read here",
        "export them as parquet, CSV or TSV if they are part of the log, or move them elsewhere",
    ),
    "csv_ragged_row": Rule(
        "error",
        "{count} row(s) do not have the {width} fields of the header",
        "quote the values that hold the delimiter, or export as parquet",
    ),
    "csv_unclosed_quote": Rule(
        "error", "a quoted value is never closed", "close the quote near the line named, or export as parquet"
    ),
    "column_missing": Rule(
        "error",
        "there is no column for {column!r} ({meaning}); the columns are {present}",
        "name it, as guessed here from names and contents, or better: {guess}",
    ),
    "columns_missing": Rule(
        "error",
        "there are no columns for {count} roles: {roles}; the columns are {present}",
        "name them, as guessed here from names and contents, or better: {guess}",
    ),
    "column_named_missing": Rule(
        "error",
        "there is no column {mapped!r}, which was named for {column!r} ({meaning}); the columns are {present}",
        "check its spelling and capitals: {option}",
    ),
    "column_duplicated": Rule("error", "two columns have this name", "rename or remove one of them"),
    "column_shadowed": Rule(
        "error",
        "the table has a column {column!r} besides {mapped!r}, which is mapped to that role",
        "leave the other one out with --ignore {column}",
    ),
    "column_not_there": Rule(
        "error",
        "there is no column {column!r} to leave out; the columns are {present}",
        "check its spelling and capitals: --ignore {nearest}; the column you meant would be used as a feature",
    ),
    "column_unnamed": Rule("repaired", "a column has no name; it was left out", "name it if it is a feature"),
    "column_from_folders": Rule(
        "repaired",
        "{count} file(s) lie in folders named {column}=…, which was read as a column",
        "nothing to do, or --ignore {column}",
    ),
    "column_nested": Rule(
        "warning",
        "the column holds lists, records or bytes ({type}), not single values; left out",
        "if it matters, add a column for each thing that it tells: the length of a list, whether a label is in it, a "
        "field of a record",
    ),
    "role_nested": Rule(
        "error",
        "the column holds lists, records or bytes ({type}), not single values",
        "write one value a row: one row for each decision",
    ),
    "workbook_engine": Rule(
        "error",
        "the file is a workbook, and reading one needs an engine that is not installed",
        "pip install 'redenvelope[excel]', or save the sheet as CSV UTF-8 (semicolons and decimal commas are fine)",
    ),
    "workbook_sheets": Rule(
        "warning",
        "the workbook has {count} sheets; the first, {sheet!r}, was read",
        "nothing to do, or save the sheet that you mean in a workbook of its own",
    ),
    "dates_relative": Rule(
        "repaired",
        "dates were made relative to {column}, when decisions were made: {made}",
        "nothing to do; tables to decide for need {column}, and the other dates, as the log has them",
    ),
    "dates_not_relative": Rule(
        "warning",
        "dates could not be made relative: {why}",
        "name the time of each decision with --time, or make the columns yourself: its weekday, days since a date",
    ),
    "date_outside": Rule(
        "error",
        "{count} value(s) are dates outside of the years 1 to 9999, or no times of a day",
        "repair the export, or leave the column out with --ignore {column}",
    ),
    "type_clash": Rule(
        "error",
        "the column is {type} in this file but {other_type} in {other_file}",
        "write all files with the same types",
    ),
    "columns_differ": Rule(
        "error",
        "the file lacks this column, which {other_file} has",
        "write all files with the same columns, or leave it out with --ignore {column}",
    ),
    "byte_order_mark": Rule("repaired", "a byte order mark was skipped", "nothing to do"),
    "carriage_returns": Rule("repaired", "lines end in CRLF; read as line ends", "nothing to do"),
    "delimiter": Rule("repaired", "fields are separated by {delimiter}, not by a comma", "nothing to do"),
    "number_dress": Rule("repaired", "{count} number(s) are written with {dress}; read as numbers", "nothing to do"),
    "truth_in_words": Rule("repaired", "{count} value(s) say {yes!r} or {no!r}; read as 1 and 0", "nothing to do"),
    "cost_filled": Rule(
        "repaired",
        "{count} row(s) have no cost; it was taken as {value}, as --missing-cost says",
        "nothing to do",
    ),
    "decimal_comma": Rule("repaired", "{count} number(s) are written with a decimal comma", "nothing to do"),
    "integer_widths": Rule(
        "repaired", "files store this number with different widths; read as the widest", "nothing to do"
    ),
    "column_order": Rule(
        "repaired", "columns stand in another order than in {other_file}; matched by name", "nothing to do"
    ),
}
