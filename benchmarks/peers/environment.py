"""A virtual environment of their own for the peers, obp and SCOPE-RL, in a cache folder; made once.

Run it to make the environment and print its Python. They need torch, pandas and numpy 1, which redenvelope does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

PACKAGES = ("obp==0.4.1", "scope-rl==0.2.1", "numpy<2")
# obp's later releases cannot be installed by pip: their files and their metadata name different versions.


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "redenvelope" / "peers"


def peer_python() -> Path:
    """The Python of the peers' environment, which is made if it is not there.

    PEERS_TORCH names the torch to install first, such as a build without GPU support, to save two gigabytes.
    """
    folder = cache_folder()
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"making an environment for obp and SCOPE-RL in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        torch = os.environ.get("PEERS_TORCH")
        for packages in ((torch, "numpy<2"), PACKAGES) if torch else (PACKAGES,):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, stdout=sys.stderr)
        ready.write_text("\n".join(PACKAGES))
    return python


if __name__ == "__main__":
    print(peer_python())
