"""The documentation site: it builds, fits every screen, and its search works."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 480
WIDTHS = (390, 1280)
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("the extra docs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "--quiet", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


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
