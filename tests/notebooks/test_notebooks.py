"""Every notebook runs from top to bottom, and becomes a page of the site."""

from __future__ import annotations

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.support import groups
from tests.support.real_broker import RealBroker
from tools.notebook_pages import NOTEBOOKS, execute, page, read

NAMES = {
    "exactly_once",
    "migration",
    "quickstart",
    "streaming_lag",
    "testing_with_faults",
    "typed_topic",
}

ON_A_CLUSTER = {"exactly_once", "streaming_lag", "typed_topic"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("default", "error:Non-unique cell id")
def test_the_notebooks_run_on_embedded_brokers_and_draw_charts() -> None:
    ran = execute([read(path) for path in NOTEBOOKS])
    for path, notebook in zip(NOTEBOOKS, ran, strict=True):
        text, images = page(notebook, path.stem)
        assert images, path.stem
        for name, image in images.items():
            assert f"]({name})" in text
            assert image.startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("default", "error:Non-unique cell id")
@pytest.mark.xdist_group(groups.NOTEBOOKS)
def test_notebooks_whose_broker_matters_run_on_a_cluster(real_broker: RealBroker) -> None:
    # The others show what is the same on any broker.
    chosen = [path for path in NOTEBOOKS if path.stem in ON_A_CLUSTER]
    assert len(chosen) == len(ON_A_CLUSTER)
    execute([read(path) for path in chosen], real_broker.service_url)


def test_a_notebook_that_runs_again_on_a_cluster_has_another_topic() -> None:
    for path in NOTEBOOKS:
        code = "".join(cell.source for cell in read(path).cells if cell.cell_type == "code")
        assert re.search(r"^topic = f.*\{uuid\.uuid4\(\)", code, re.MULTILINE), path.stem


def test_all_notebooks_are_there_and_none_is_committed_with_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == NAMES
    for path in NOTEBOOKS:
        assert not any(cell.get("outputs") for cell in read(path).cells)


def test_a_notebook_becomes_markdown_with_its_outputs() -> None:
    def output(kind: str, **fields: object) -> nbformat.NotebookNode:
        return new_output(kind, **fields)  # type: ignore[no-untyped-call,no-any-return]

    outputs = [
        output("stream", name="stderr", text="a warning\n"),
        output("stream", name="stdout", text="| a |\n"),
        output("display_data", data={"image/png": "iVBORw==", "text/plain": "<Figure>"}),
        output("execute_result", data={"text/plain": "42"}),
    ]
    cells = [
        new_markdown_cell("# Title\n\nText."),  # type: ignore[no-untyped-call]
        new_code_cell("show()", outputs=outputs),  # type: ignore[no-untyped-call]
    ]
    text, images = page(new_notebook(cells=cells), "it")  # type: ignore[no-untyped-call]
    assert text == (
        "# Title\n\n"
        "*This page is the notebook `notebooks/it.ipynb`, run when the site was built.*\n\n"
        "Text.\n\n```python\nshow()\n```\n\n```text\n| a |\n```\n\n"
        "![Chart that the cell above draws](it-0.png)\n\n```text\n42\n```\n"
    )
    assert images == {"it-0.png": b"\x89PNG"}
