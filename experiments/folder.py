"""The folder of results: every file written aside and then renamed, and nothing of anybody else's touched."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.document import index_html, index_markdown, markdown_table
from experiments.result import Result
from experiments.room import MANIFEST, aside, listed, require_room
from experiments.settings import ReproduceSettings
from experiments.style import html, image
from redenvelope import __version__
from redenvelope.errors import UsageError

__all__ = ["ResultFolder"]


@dataclass(eq=False)
class ResultFolder:
    """Results as they come: after each one the folder is whole, though perhaps not complete."""

    folder: Path
    settings: ReproduceSettings
    results: list[Result] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Take an earlier run's files away and say that a new run has begun."""
        require_room(self.folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in listed(self.folder):
                for path in (self.folder / name, self.folder / aside(name)):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder}: cannot be written ({error.strerror or error})") from None
        self._write_manifest(complete=False)

    def add(self, result: Result) -> None:
        """Write a finished experiment and the index that names it."""
        self.results.append(result)
        self._write(f"{result.name}.csv", result.table.write_csv().encode())
        self._write(f"{result.name}.md", f"# {result.title}\n\n{markdown_table(result.table)}\n".encode())
        for figure in result.figures:
            self._write(f"{figure.name}.png", image(figure.chart))
            self._write(f"{figure.name}.html", html(figure.chart))
        self._write_index(complete=False)

    def finish(self) -> None:
        """Say that everything is there."""
        self._write_index(complete=True)

    def as_dict(self) -> dict[str, Any]:
        """What was found, as plain data."""
        return {
            "folder": str(self.folder),
            "files": self.files,
            "experiments": {
                result.name: {
                    "title": result.title,
                    "finding": result.key,
                    "sentences": list(result.sentences),
                    "rows": result.table.to_dicts(),
                }
                for result in self.results
            },
        }

    def _write_index(self, complete: bool) -> None:
        settings = self.settings
        size = (
            f"{settings.seeds} logs from seed {settings.seed} on; {settings.two_step_users:,} users of the two-step "
            f"problem and {settings.envelope_users:,} of envelopes a log; redenvelope {__version__}."
        )
        note = size if complete else f"{size} Not complete: the run is going on, or was interrupted."
        self._write("README.md", index_markdown(self.results, note).encode())
        pictures = {
            figure.name: (self.folder / f"{figure.name}.png").read_bytes()
            for result in self.results
            for figure in result.figures
        }
        self._write("index.html", index_html(self.results, pictures, note).encode())
        self._write_manifest(complete)

    def _write_manifest(self, complete: bool) -> None:
        content = {
            "package": __version__,
            "complete": complete,
            "settings": self.settings.as_dict(),
            "files": self.files,
        }
        self._put(MANIFEST, (json.dumps(content, indent=1) + "\n").encode())

    def _write(self, name: str, content: bytes) -> None:
        if name not in self.files:
            self.files.append(name)
            # Named before it is there: a run that is stopped in between leaves nothing that a later one would refuse.
            self._write_manifest(complete=False)
        self._put(name, content)

    def _put(self, name: str, content: bytes) -> None:
        part = self.folder / aside(name)
        try:
            part.write_bytes(content)
            part.replace(self.folder / name)
        except OSError as error:
            raise UsageError(f"{self.folder / name}: cannot be written ({error.strerror or error})") from None
        finally:
            part.unlink(missing_ok=True)
