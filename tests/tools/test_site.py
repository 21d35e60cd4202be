"""The documentation site: it builds, fits every screen, and its search works."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 480
WIDTHS = (390, 1280)
REPOSITORY = "https://github.com/example/pulsar-spark"
MAINTAINERS = ("design", "modules", "protocol", "extending", "faults")
SEARCHES = ("schema evolution", "exactly once", "backlog")

# Loads every page into a frame of each width and colour scheme, and searches as a reader would.
HARNESS = """
<body><script>
const frame = (url, width) => new Promise(resolve => {
  const made = document.createElement("iframe");
  Object.assign(made, {width, height: 800, src: url, onload: () => resolve(made)});
  document.body.append(made);
});
const found = made => made.contentDocument.querySelectorAll(".md-search-result__item").length;
(async () => {
  const overflows = [], hits = {};
  for (const page of PAGES) for (const width of WIDTHS) {
    const made = await frame(page, width), page_ = made.contentDocument;
    for (const scheme of ["default", "slate"]) {
      page_.body.setAttribute("data-md-color-scheme", scheme);
      const {scrollWidth, clientWidth} = page_.documentElement;
      if (scrollWidth > clientWidth) overflows.push([page, width, scheme, scrollWidth]);
    }
    made.remove();
  }
  for (const text of SEARCHES) {
    const made = await frame("index.html?q=" + encodeURIComponent(text), 1280);
    for (let i = 0; i < 600 && !found(made); i++) await new Promise(r => setTimeout(r, 50));
    hits[text] = found(made);
    made.remove();
  }
  return {overflows, hits};
})().catch(error => ({error: String(error)})).then(
  result => fetch("/result", {method: "POST", body: JSON.stringify(result)}));
</script></body>
"""


@pytest.fixture(scope="module")
def browser() -> str:
    """The browser that is here; skips if there is none, before anything is built."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no Chromium (Debian's package chromium)")
    return found


def build(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    for needed in ("mkdocs", "material", "mkdocstrings", "nbclient"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip("the extra docs is not installed: make docs")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", **environment},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def quick_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a repository with an address; notebooks are shown without outputs."""
    folder = tmp_path_factory.mktemp("quick")
    done = build(folder, PULSAR_SPARK_DOCS_NOTEBOOKS="0", PULSAR_SPARK_REPOSITORY=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def searched(site: Path) -> list[dict[str, Any]]:
    """Return what the search knows."""
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found: list[dict[str, Any]] = index["docs"]
    return found


def test_the_search_has_options_first_and_leaves_out_what_is_for_maintainers(
    quick_site: Path,
) -> None:
    found = searched(quick_site)
    places = {entry["location"]: entry for entry in found}
    option = places["options.html#maxmessagespertrigger"]
    assert option["title"] == "<code>maxMessagesPerTrigger</code>"
    assert option["boost"] > 1
    pages = {place.partition("#")[0] for place in places}
    assert "scheduled-jobs.html" in pages
    assert pages.isdisjoint(f"{name}.html" for name in MAINTAINERS)
    for word in ("airflow", "iceberg", "__key", "watermark", "certificates"):
        assert any(word in entry["text"].lower() for entry in found), word


def test_pages_have_tabs_a_next_page_and_links_to_edit_their_source(quick_site: Path) -> None:
    page = (quick_site / "reading.html").read_text("utf-8")
    tabs = re.findall(r'md-tabs__link">\s*(\w+)', page)
    assert tabs == ["Guide", "Operate", "Reference", "Develop"]
    assert 'rel="next"' in page
    assert f"{REPOSITORY}/edit/main/docs/reading.md" in page
    options = (quick_site / "options.html").read_text("utf-8")
    assert f"{REPOSITORY}/edit/main/pulsar_spark/spark/options/table.py" in options
    assert "api.github.com" not in page
    assert "0.2.0" in (quick_site / "changelog.html").read_text("utf-8")


def test_no_reference_page_opens_with_how_it_is_generated() -> None:
    for name in ("options", "columns", "command-line", "api", "troubleshooting", "benchmarks"):
        first = (ROOT / "docs" / f"{name}.md").read_text("utf-8")[:600]
        assert "enerated" not in first, name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    "text,said",
    [
        ("[it](missing.md)", "missing.md"),
        ("[it](index.md#missing)", "#missing"),
        (f"```\n{'x' * 77}\n```", "77 columns"),
        ("![it](https://example.com/a.png)", "from other hosts"),
    ],
    ids=["page", "anchor", "width", "fetched"],
)
def test_what_is_wrong_with_a_page_fails_the_build(tmp_path: Path, text: str, said: str) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed: make docs")
    pytest.importorskip("material", reason="the extra docs is not installed: make docs")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# It\n\n{text}\n")
    small = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(tmp_path / "docs"),
        "site_dir": str(tmp_path / "site"),
        "theme": {"custom_dir": str(ROOT / "tools" / "site")},
        "hooks": [str(ROOT / "tools" / "docs_hooks.py")],
        "plugins": [],
        "extra_css": [],
        "nav": ["index.md"],
    }
    (tmp_path / "mkdocs.yml").write_text(json.dumps(small))
    made = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "docs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
    )
    words = shlex.split(made.stdout.splitlines()[-1])
    flags = words[words.index("mkdocs") + 1 :]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *flags, "--config-file", tmp_path / "mkdocs.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PULSAR_SPARK_DOCS_NOTEBOOKS": "0"},
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def results(site: Path) -> Iterator[tuple[str, queue.Queue[str]]]:
    """The address of the site, and the reports of its harness."""
    reported: queue.Queue[str] = queue.Queue()

    class Handler(SimpleHTTPRequestHandler):
        def do_POST(self) -> None:
            reported.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/harness.html", reported
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_the_site_fits_phones_and_screens_and_its_search_finds_what_people_look_for(
    browser: str, site: Path, results: tuple[str, queue.Queue[str]], tmp_path: Path
) -> None:
    found = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    pages = sorted(found - {"404.html"})
    script = HARNESS
    for name, value in {"PAGES": pages, "WIDTHS": WIDTHS, "SEARCHES": SEARCHES}.items():
        script = script.replace(f" {name})", f" {json.dumps(value)})")
    (site / "harness.html").write_text(script)
    address, reported = results
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with subprocess.Popen(
        [browser, *flags, f"--user-data-dir={tmp_path}", "--remote-debugging-port=0", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            told = json.loads(reported.get(timeout=SECONDS))
        finally:
            process.terminate()
    assert {"index.html", "notebooks/quickstart.html"} <= found
    assert list(site.glob("notebooks/*.png"))
    assert told.get("overflows") == [], told
    assert all(told["hits"][text] for text in SEARCHES), told
