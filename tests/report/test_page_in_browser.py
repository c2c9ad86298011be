"""The page in a real browser: no error, no request, tables that sort, series that
switch, keys, widths.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedtailor.report.page import render
from report.pages import HOSTILE, SERIES, page

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser (Debian: apt-get install chromium)"
)

# Listens before anything of the page runs.
BEFORE = """<script>
window.problems = [];
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"])
  addEventListener(kind, ({ message, reason, blockedURI }) =>
    problems.push(`${kind}: ${message ?? reason ?? blockedURI}`), true);
</script>"""

# Does what a reader does, and puts down what came of it.
AFTER = """<script>
addEventListener("load", () => setTimeout(() => {
  const found = {};
  const table = document.querySelector("table.sortable");
  const column = () => Array.from(table.tBodies[0].rows, (row) => row.cells[0].textContent);
  const [name, number] = table.tHead.rows[0].cells;
  found.sorted = [column()];
  for (const header of [number, number, name]) {
    header.querySelector("button").click();
    found.sorted.push(column());
  }
  found.aria = [name, number].map((header) => header.getAttribute("aria-sort"));
  const figure = document.querySelector("figure.chart"), plot = figure.plot;
  const ticks = Array.from(figure.querySelectorAll("input[type=checkbox]"));
  const shown = () => plot.series.slice(1).map(({ show }) => show);
  found.shown = [shown()];
  found.scales = [[plot.scales.y.min, plot.scales.y.max]];
  ticks[0].click();
  ticks.at(-1).click();
  found.shown.push(shown());
  found.checked = ticks.map(({ checked }) => checked);
  found.colours = Array.from(figure.querySelectorAll(".swatch"), (it) => it.style.background);
  figure.querySelector(".plot").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  ticks[1].click();
  setTimeout(() => {
    found.scales.push([plot.scales.y.min, plot.scales.y.max]);
    found.read = Array.from(figure.querySelectorAll(".readout"), (it) => it.textContent);
    const canvas = figure.querySelector("canvas");
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    found.drawn = pixels.some((value) => value !== 0);
    found.charts = document.querySelectorAll("figure.chart canvas").length;
    found.width = [document.documentElement.scrollWidth, innerWidth];
    found.focusable = Array.from(document.querySelectorAll("button, input, .scroll, .plot"), (it) => it.tabIndex);
    found.resources = performance.getEntriesByType("resource").map(({ name }) => name);
    dispatchEvent(new Event("beforeprint"));
    found.printed = plot.width;
    found.problems = problems;
    const out = document.createElement("pre");
    out.id = "found";
    out.textContent = JSON.stringify(found);
    parent.document.body.append(out);
  }, 300);
}, 300));
</script>"""


def with_scripts(text):
    """The page with the two scripts, which its policy then allows by their digests."""
    digests = [
        base64.b64encode(hashlib.sha256(script[8:-9].encode()).digest()).decode()
        for script in (BEFORE, AFTER)
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        text.replace("script-src ", f"script-src {allowed} ", 1)
        .replace("<title>", f"{BEFORE}<title>", 1)
        .replace("</body>", f"{AFTER}</body>")
    )


def in_browser(address, profile):
    """What the scripts put down, and the browser's console."""
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--disable-dev-shm-usage",
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            f"--user-data-dir={profile}",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--hide-scrollbars",
            "--window-size=1500,1000",
            "--virtual-time-budget=5000",
            "--dump-dom",
            address,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    return json.loads(unescape(found[1])) | {"console": done.stderr}


@pytest.fixture(scope="module", params=[400, 1400, "file"])
def opened(request, tmp_path_factory):
    """What a browser of some width found, its console, and what it asked the server
    for; or what it found in a file.
    """
    text = with_scripts(render(page()))
    profile = tmp_path_factory.mktemp("chromium")
    if request.param == "file":
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(text, encoding="utf-8")
        nothing = {"asked": ["/", "/page"], "wanted": 1500}
        return in_browser(path.as_uri(), profile) | nothing
    # A window has a least width that the page in it need not have.
    frame = f"""<link rel="icon" href="data:,"><iframe src="/page" width="{request.param}" height="900"
                frameborder="0"></iframe>"""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((frame if self.path == "/" else text).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            found = in_browser(f"http://127.0.0.1:{server.server_port}/", profile)
        finally:
            server.shutdown()
            thread.join()
    return found | {"asked": asked, "wanted": request.param}


def test_no_error_and_no_request(opened):
    assert opened["problems"] == [] and "CONSOLE" not in opened["console"]
    assert (
        opened["asked"] == ["/", "/page"]
        and opened["resources"] == ["data:,"][: len(opened["resources"])]
    )


def test_tables_sort_by_numbers_and_by_names(opened):
    first, ascending, descending, by_name = opened["sorted"]
    assert first == ["b", "a10", HOSTILE, "a9", "c"]
    assert ascending == [
        "c",
        HOSTILE,
        "b",
        "a10",
        "a9",
    ]  # -20, -3, 9.5, 100, and no number last
    assert descending == ["a10", "b", HOSTILE, "c", "a9"]
    assert by_name == [HOSTILE, "a9", "a10", "b", "c"]
    assert opened["aria"] == ["ascending", "none"]


def test_series_switch_on_and_off(opened):
    before, after = opened["shown"]
    assert before == [True] * 6 + [False] * 2
    assert after == [False] + [True] * 5 + [False, True] == opened["checked"]
    assert len(set(opened["colours"][:6])) == 6


def test_the_axis_has_room_for_bands_while_they_are_shown(opened):
    (low, high), (low_after, high_after) = opened["scales"]
    assert low <= -40 and high >= 60
    assert low_after > -10 and high_after < 20


def test_curves_are_drawn_and_read_by_keys(opened):
    assert opened["drawn"] and opened["charts"] == 2
    *values, where = opened["read"]
    assert where == "rounds: 1" and values == ["0"] + ["\u2013"] * (SERIES - 1)
    assert min(opened["focusable"]) == 0


def test_the_page_is_as_wide_as_the_window_and_the_paper(opened):
    reached, window = opened["width"]
    assert window == opened["wanted"] and reached <= window
    assert opened["printed"] == 640


def test_a_script_that_slipped_into_the_page_does_not_run(tmp_path):
    """What escaping and the policy each prevent: here only the policy is left."""
    text = with_scripts(render(page()))
    slipped = """<script>window.problems = ["ran"]</script>
    <img src="x" onerror="window.problems = ['ran']"><b style="color:red">x</b>"""
    path = tmp_path / "report.html"
    path.write_text(text.replace("<main", f"{slipped}<main"), encoding="utf-8")
    found = in_browser(path.as_uri(), tmp_path / "chromium")
    assert "ran" not in found["problems"] and len(found["problems"]) >= 3
