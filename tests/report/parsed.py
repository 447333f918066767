"""A page as a reader and a browser see it."""

from __future__ import annotations

from html.parser import HTMLParser


class Parsed(HTMLParser):
    """Tags, attributes, and the text that a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._apart(tag)
        if tag in ("script", "style"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._apart(tag)
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def _apart(self, tag: str) -> None:
        """Words of different tags stand apart, unless one is a link inside of a sentence."""
        if tag != "a":
            self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if not self._open:
            self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)
