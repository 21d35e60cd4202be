"""Pages generated from the code are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulsar_spark import errors
from pulsar_spark.errors import PulsarError
from tools import diagrams, fault_table, file_map, page_checks, reference_pages
from tools.page_checks import faults

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_modules_is_current() -> None:
    assert file_map.PAGE.read_text() == file_map.page(), "python -m tools.file_map"


def test_the_page_of_faults_is_current() -> None:
    assert fault_table.PAGE.read_text() == fault_table.page(), "python -m tools.fault_table"


def test_every_marked_row_is_described() -> None:
    described = {row for rows in fault_table.SECTIONS.values() for row in rows}
    assert set(fault_table.marked_tests()) <= described


def test_each_variable_of_the_tests_is_on_their_page() -> None:
    tests = Path(__file__).parents[1]
    pattern = re.compile(r"PULSAR_SPARK_TEST_[A-Z_]+")
    used = {name for path in tests.rglob("*.py") for name in pattern.findall(path.read_text())}
    assert used
    page = (tests / "README.md").read_text()
    assert used <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))


def test_a_link_to_a_file_beside_the_docs_becomes_its_name_on_the_site() -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed: make docs")
    from tools import docs_hooks

    text = docs_hooks.linked("[tests](../tests/README.md#x), [b](b.md)", "a.md")
    assert text == "tests (`tests/README.md`), [b](b.md)"
    text = docs_hooks.linked("[it](../notebooks/quickstart.ipynb)", "a.md")
    assert text == "[it](notebooks/quickstart.md)"
    assert docs_hooks.linked("[it](../CHANGELOG.md)", "a.md") == "[it](changelog.md)"
    with pytest.raises(ValueError, match=r"a\.md links to nowhere\.md"):
        docs_hooks.linked("[it](../nowhere.md)", "a.md")


def test_links_to_edit_a_generated_page_lead_to_what_it_is_made_of() -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed: make docs")
    from tools import docs_hooks

    assert [path for path in docs_hooks.SOURCES.values() if not (DOCS.parent / path).exists()] == []
    pages = {*docs_hooks.SOURCES, *docs_hooks.BOOSTS} - {"changelog.md"}
    assert [name for name in pages if not (DOCS / name).exists()] == []


@pytest.mark.parametrize("path", diagrams.PAGES, ids=lambda path: path.stem)
def test_the_diagrams_are_current(path: Path) -> None:
    assert path.read_text() == diagrams.PAGES[path](), "python -m tools.diagrams"


def test_a_diagram_follows_the_colours_of_the_site_and_of_the_reader_elsewhere() -> None:
    (path, *_) = diagrams.PAGES
    assert "prefers-color-scheme:dark" in path.read_text()
    page = diagrams.in_page(f'<p><img alt="It" src="diagrams/{path.name}" /></p>')
    assert "<img" not in page
    assert "prefers-color-scheme" not in page
    assert '[data-md-color-scheme="slate"] .diagram{' in page


def test_what_does_not_fit_a_diagram_is_an_error() -> None:
    drawing = diagrams.Drawing("it", "", 100, 50)
    with pytest.raises(ValueError, match="wider than its box"):
        drawing.box(0, 0, 60, 20, "far too long")
    with pytest.raises(ValueError, match="leaves 'it'"):
        drawing.text(90, 20, "out of it")


# --- checks of pages --------------------------------------------------------------------------


def test_the_guides_fit_the_page() -> None:
    maintainers = {"design.md", "modules.md", "protocol.md", "extending.md", "faults.md"}
    guides = [path for path in sorted(DOCS.glob("*.md")) if path.name not in maintainers]
    assert len(guides) > 20
    texts = {path.name: path.read_text("utf-8") for path in [*guides, DOCS.parent / "README.md"]}
    assert {name: found for name, text in texts.items() if (found := faults(text))} == {}


def test_the_code_of_notebooks_fits_the_page() -> None:
    pytest.importorskip("nbclient", reason="notebooks are not installed")
    from tools import notebook_pages

    for path in notebook_pages.NOTEBOOKS:
        text, _ = notebook_pages.page(notebook_pages.read(path), path.stem)
        assert faults(text) == [], path.name


def test_code_that_is_too_wide_is_found_with_its_line() -> None:
    fits, wide = "x" * page_checks.COLUMNS, "x" * (page_checks.COLUMNS + 1)
    assert faults(f"{wide}\n\n```python\n{fits}\n```\n") == []
    (found,) = faults(f"text\n```python\n{fits}\n{wide}\n```\n{wide}\n")
    assert found.startswith("line 4: 77 columns")


def test_a_table_that_cannot_be_made_narrow_enough_is_found() -> None:
    words = "| " + " | ".join(["a word or two"] * 6) + " |\n"
    long = "| " + " | ".join(["x" * 30] * 4) + " |\n"
    names = "| " + " | ".join(["`pulsar.client.maxLookupRedirects`"] * 4) + " |\n"
    assert faults(words + names) == []
    (found,) = faults(f"text\n\n{words}{long}\ntext")
    assert found.startswith("line 3: a table of")


@pytest.mark.parametrize("tag", ["td", "th", "h3"])
def test_tables_and_headings_break_long_names_and_nothing_else(tag: str) -> None:
    name = "<code>pulsar.client.maxRedirects</code>"
    broken = "<code>pulsar.<wbr>client.<wbr>max<wbr>Redirects</code>"
    assert page_checks.breakable(f"<{tag}><code>a.b</code> {name}</{tag}>{name}") == (
        f"<{tag}><code>a.b</code> {broken}</{tag}>{name}"
    )


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example.com/a.js"></script>',
        '<link rel="stylesheet" href="//cdn.example.com/a.css">',
        '<img src="https://example.com/badge.svg">',
        '<p style="background: url(https://example.com/a.png)"></p>',
        '<pre class="mermaid"></pre>',
        '<a href="https://example.com" data-md-component="source"></a>',
    ],
)
def test_what_a_page_fetches_from_other_hosts_is_found(html: str) -> None:
    assert len(page_checks.fetched_from_elsewhere(html)) == 1


def test_links_to_other_hosts_are_not_fetched() -> None:
    html = '<a href="https://example.com">x</a><link rel="canonical" href="https://example.com">'
    assert page_checks.fetched_from_elsewhere(html + '<img src="a.png">') == []
    assert page_checks.imported_from_elsewhere("a { background: url(a.png) }") == []
    css = '@import "https://fonts.example.com/x.css";'
    assert page_checks.imported_from_elsewhere(css) == ["https://fonts.example.com/x.css"]


@pytest.mark.parametrize("path", reference_pages.PAGES, ids=lambda path: path.stem)
def test_the_pages_of_columns_and_errors_are_current(path: Path) -> None:
    page = reference_pages.PAGES[path]()
    assert path.read_text() == page, "python -m tools.reference_pages"


def test_every_error_is_on_the_page_of_troubles() -> None:
    def below(kind: type[PulsarError]) -> set[str]:
        return {kind.__name__}.union(*map(below, kind.__subclasses__()))

    shown = {kind.__name__ for kinds in reference_pages.kinds().values() for kind in kinds}
    ours = {name for name in below(PulsarError) if name in vars(errors)}
    assert shown == ours - {"PulsarError"}


def test_an_error_without_a_remedy_is_found() -> None:
    class Nameless(PulsarError):
        """Something.

        Cause: it is so.
        """

    with pytest.raises(ValueError, match="Nameless needs"):
        reference_pages.parts(Nameless)
