"""The public surface, the cost of importing it, and the direction of imports."""

import ast
import subprocess
import sys
from pathlib import Path

import redenvelope

SOURCE = Path(redenvelope.__file__).parent


def test_every_public_name_exists_and_is_documented() -> None:
    assert redenvelope.__all__ == sorted(redenvelope.__all__)
    for name in redenvelope.__all__:
        assert getattr(redenvelope, name).__doc__, name


def test_nothing_public_is_left_out_of_all() -> None:
    assert set(dir(redenvelope)) == {*redenvelope.__all__, "__version__"}
    assert set(redenvelope._HOMES) == set(redenvelope.__all__)


def test_the_names_for_type_checkers_are_the_real_ones() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.name: node.module
        for node in ast.walk(guarded)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {name: f"redenvelope.{home}" for name, home in redenvelope._HOMES.items()}


def test_no_public_name_is_hidden_by_a_folder() -> None:
    # Importing redenvelope.audit.overlap would otherwise turn redenvelope.audit into the folder.
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    assert not folders & set(redenvelope.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(redenvelope, "no_such_name")


def test_importing_the_package_loads_nothing_heavy() -> None:
    # What costs time is loading these; the seconds themselves are measured in benchmarks/startup.py.
    heavy = "jax equinox optax polars numpy scipy altair rich typer"
    code = f"import redenvelope, sys; print([name for name in '{heavy}'.split() if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    heavy = "jax equinox optax polars numpy scipy altair"
    code = f"import redenvelope.cli, sys; print([name for name in '{heavy}'.split() if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_deciding_loads_no_training_code() -> None:
    modules = [f"redenvelope.{home}" for home in ("plan.storage", "plan.decide", "plan.policy", "planning.q_values")]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert set(modules) <= set(loaded)
    factory = ("optax", "redenvelope.fitting", "redenvelope.learning", "redenvelope.models.fit")
    factory += ("redenvelope.models.training",)
    assert [name for name in loaded if name.startswith(factory)] == []


def test_every_module_says_what_it_is_about() -> None:
    for path in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path
