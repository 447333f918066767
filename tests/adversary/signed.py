"""Plans that are changed and signed again, as somebody would who knows the format: hashes must not be what saves us."""

import json
from pathlib import Path
from typing import Any

from redenvelope.plan.storage import MANIFEST, sealed


def sign(folder: Path, manifest: dict[str, Any] | None = None, **files: bytes) -> Path:
    """Write files (by name, dots as underscores) and a manifest into a plan folder, with hashes and a seal that fit."""
    own = manifest if manifest is not None else json.loads((folder / MANIFEST).read_text())
    names = own.get("files", {})
    for name in names:
        given = files.get(name.replace(".", "_"))
        if given is not None:
            (folder / name).write_bytes(given)
    contents = {name: (folder / name).read_bytes() for name in names}
    plain = {key: value for key, value in own.items() if key not in ("seal", "files")}
    (folder / MANIFEST).write_bytes(sealed(plain, contents))
    return folder


def edit(folder: Path, **changes: object) -> Path:
    """Change parts of the manifest."""
    return sign(folder, json.loads((folder / MANIFEST).read_text()) | changes)


def edit_json(folder: Path, name: str, **changes: object) -> Path:
    """Change parts of another file."""
    content = json.loads((folder / name).read_text()) | changes
    return sign(folder, **{name.replace(".", "_"): json.dumps(content).encode()})
