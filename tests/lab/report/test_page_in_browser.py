"""The page in a real browser: no error, no request, tables that sort, curves,
widths.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import zlib
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedtailor.lab.report.page import Page, Section, render
from fedtailor.lab.report.page.contents import fold_long_tables
from fedtailor.lab.report.page.pictures import axis_range, forest
from fedtailor.lab.results.tables import Number, ReportTable
from lab.report.pages import HOSTILE, charts, gains, page

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
// Texts that a reader sees badly: WCAG asks for a contrast of 4.5 with what is behind.
const faint = () => {
  const numbers = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => numbers(colour).slice(0, 3).map((it) => it / 255)
    .map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4))
    .reduce((sum, it, i) => sum + it * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor, [, , , alpha = 1] = numbers(colour);
      if (alpha === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = Array.from(document.querySelectorAll("body *"), (it) => it).filter((it) =>
    it.getClientRects().length && !it.closest("script, title, .skip")
    && Array.from(it.childNodes).some((node) => node.nodeType === 3 && node.textContent.trim()));
  return texts.map((it) => {
    const style = getComputedStyle(it), ink = it.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(it))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), it.tagName, it.textContent.slice(0, 30), ink];
  }).filter(([contrast]) => contrast < 4.5);
};
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
  setTimeout(() => {
    const images = Array.from(document.querySelectorAll("figure.chart img"));
    found.charts = images.map((it) => [it.complete && it.naturalWidth > 0, it.alt]);
    found.width = [document.documentElement.scrollWidth, innerWidth];
    found.focusable = Array.from(document.querySelectorAll("button, .scroll"), (it) => it.tabIndex);
    const box = document.querySelector(".scroll");
    found.frozen = [box.querySelector("tbody th").offsetWidth, box.clientWidth];
    found.faint = faint();
    found.back = getComputedStyle(document.body).backgroundColor;
    found.resources = performance.getEntriesByType("resource").map(({ name }) => name);
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


def browse(profile, *arguments):
    """Run the browser."""
    return subprocess.run(
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
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )


def in_browser(address, profile, *arguments):
    """What the scripts put down, and the browser's console."""
    done = browse(profile, *arguments, "--dump-dom", address)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert found is not None, done.stderr[-2000:]
    return json.loads(unescape(found[1])) | {"console": done.stderr}


@pytest.fixture(scope="module", params=[400, 1400, "file", "dark"])
def opened(request, tmp_path_factory):
    """What a browser of some width found, its console, and what it asked the server
    for; or what it found in a file.
    """
    text = with_scripts(render(page()))
    profile = tmp_path_factory.mktemp("chromium")
    if request.param in ("file", "dark"):
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(text, encoding="utf-8")
        arguments = ["--force-dark-mode"] if request.param == "dark" else []
        nothing = {"asked": ["/", "/page"], "wanted": 1500}
        found = in_browser(path.as_uri(), profile, *arguments)
        return found | nothing | {"dark": request.param == "dark"}
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
    return found | {"asked": asked, "wanted": request.param, "dark": False}


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


def test_curves_are_drawn(opened):
    assert opened["charts"] == [
        [True, "Many: accuracy, % over rounds"],
        [True, "One: loss over MB"],
    ]
    assert min(opened["focusable"]) == 0


def test_the_page_is_as_wide_as_the_window(opened):
    reached, window = opened["width"]
    assert window == opened["wanted"] and reached <= window


def test_the_page_is_as_dark_as_the_reader_wants(opened):
    white, dark = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
    assert opened["back"] == (dark if opened["dark"] else white)
    assert opened["faint"] == []


def test_the_first_column_leaves_room_on_a_phone(opened):
    column, room = opened["frozen"]
    assert column < (0.5 if opened["wanted"] == 400 else 0.8) * room


def printed(page_text, tmp_path):
    """The contents of each page of paper, as PDF commands."""
    path, paper = tmp_path / "report.html", tmp_path / "report.pdf"
    path.write_text(page_text, encoding="utf-8")
    options = ("--no-pdf-header-footer", f"--print-to-pdf={paper}", path.as_uri())
    browse(tmp_path / "chromium", *options)
    content = paper.read_bytes()
    numbers = re.findall(rb"/Type\s*/Page\b[^s].*?/Contents (\d+) 0 R", content, re.S)
    pages = []
    for number in numbers:
        pattern = rb"\n%s 0 obj.*?stream\r?\n(.*?)\r?\nendstream" % number
        stream = re.search(pattern, content, re.S)
        pages.append(zlib.decompress(stream[1]).decode("latin-1"))
    return pages


def test_a_table_has_its_header_on_every_page_of_paper(tmp_path):
    lines = [[f"client {k}", Number(k, str(k))] for k in range(160)]
    table = ReportTable("Clients", ["client", "accuracy"], lines)
    text = render(Page("a", "b", {"s": [Section("t", tables=[table])]}))
    # Headers in a colour that nothing else has; styles are allowed by their digests.
    colour = "<style>thead th { color: rgb(1, 2, 3) !important; }</style>"
    text = text.replace("style-src ", "style-src 'unsafe-inline' ", 1)
    text = re.sub(r"(style-src 'unsafe-inline')[^;]*", r"\1", text, count=1)
    pages = printed(text.replace("</head>", f"{colour}</head>"), tmp_path)
    assert len(pages) > 2
    tinted = [" .0039 .0078 .0118 rg" in page for page in pages]  # 1, 2 and 3 of 255
    assert all(tinted), tinted


def test_a_page_of_many_clients_is_not_a_book(tmp_path):
    """160 clients and 5 methods took 45 pages."""
    found = gains(160)
    limits = axis_range(found)
    drawn = [forest(f"method {k}", "accuracy, %", found, limits) for k in range(5)]
    lines = [[f"client {k}", *[Number(k, str(k))] * 8] for k in range(160)]
    clients = ReportTable("Clients", ["client", *"abcdefgh"], lines)
    rows = [[f"client {k}", "x", *[Number(k, str(k))] * 6] for k in range(800)]
    all_gains = ReportTable("Gains", ["client", "method", *"abcdef"], rows)
    sections = [
        Section("Clients", tables=[clients]),
        fold_long_tables(Section("Gains", pictures=drawn, tables=[all_gains])),
        Section("Curves", charts=charts()),
    ]
    assert len(printed(render(Page("a", "b", {"s": sections})), tmp_path)) <= 9


def test_a_script_that_slipped_into_the_page_does_not_run(tmp_path):
    """What escaping and the policy each prevent: here only the policy is left."""
    text = with_scripts(render(page()))
    slipped = """<script>window.problems = ["ran"]</script>
    <img src="x" onerror="window.problems = ['ran']"><b style="color:red">x</b>"""
    path = tmp_path / "report.html"
    path.write_text(text.replace("<main", f"{slipped}<main"), encoding="utf-8")
    found = in_browser(path.as_uri(), tmp_path / "chromium")
    assert "ran" not in found["problems"] and len(found["problems"]) >= 3
