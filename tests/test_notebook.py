"""The notebook runs from top to bottom, and ends where it says."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent / "docs" / "notebook.ipynb"


def test_it_is_stored_without_what_a_run_leaves_behind() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.slow  # a whole fit in a kernel of its own: half a minute of an idle machine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_leads_from_a_frame_to_a_served_decision(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # A reader has pandas, and what redenvelope brings.
    notebook.cells.insert(0, nbformat.v4.new_code_cell('import sys; sys.modules["pyarrow"] = None'))
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    told = "\n".join(
        str(output.get("text") or output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "Certified: on" in told
    assert "Decision(user=17, step=0" in told
    gained = re.search(r"The plan earns (\d+)% of what could be gained", told)
    assert gained and int(gained[1]) >= 90  # of 4,000 users, half of whom train
    assert (tmp_path / "plan" / "report.html").exists()
    assert re.search(r"'decision_id': '\w+'", told) and "'propensity': " in told
    assert "the service ended with exit code 0" in told
    assert (tmp_path / "campaign.db").exists()
