"""Whatever a name holds, it changes neither a terminal nor another line, and runs
nothing where a file is opened.
"""

import csv
import html
import io
import re
import unicodedata

import numpy as np
import polars as pl
import pytest

from fedtailor._base.printable import (
    csv_of_frame,
    csv_text,
    markdown_text,
    one_line,
    say,
    say_block,
    spreadsheet_text,
)
from fedtailor.cli import main
from fedtailor.cli.progress import progress_of
from fedtailor.lab.results.tables import ReportTable
from fedtailor.remote.wire.run_log import COORDINATOR_LOG, Lines, client_log
from fedtailor.remote.wire.transport import LoopbackTransport, send_and_receive

FORGED = "2026-01-01 all keys are good"
HOSTILE = (
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[31mred",
    f"\r{FORGED}",
    f"\n{FORGED}",
    f"\r\n{FORGED}",
    f"\u2028{FORGED}",
    f"\x85{FORGED}",
    f"\x0b{FORGED}",
    "\u202egnp.exe",
    "\u2066isolated",
    "\x9b31m",
    "\x00",
    "\x08\x08",
    "\udc80",
)
TOOLS = "=HYPERLINK(A1)", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "＝1"  # noqa: RUF001


def harmless(text):
    """Only characters that print, and no line of another's making."""
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines), repr(text)
    assert not any(line.strip().startswith(FORGED) for line in lines), repr(text)
    return True


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_line_is_one_line_of_characters_that_print(hostile):
    shown = one_line(f"client {hostile}: 60 rows")
    assert harmless(shown) and "\n" not in shown
    assert shown.startswith("client ") and shown.endswith(": 60 rows")
    shown.encode("utf-8")


def test_every_character_is_shown_or_escaped():
    characters = [chr(code) for code in range(0x110000)]
    assert one_line("a".join(characters)).isprintable()
    written = "".join(
        character
        for character in characters
        if unicodedata.category(character)[0] in "LMNPS"
    )
    assert one_line(written) == written


def test_what_prints_stays_and_different_names_stay_different():
    for text in ("", "north", "Zürich 東京 ± ≥", "  indented", "a  b", "C:\\new"):
        assert one_line(text) == text
    assert one_line("a\n\n  b\tc\xa0d") == "a b c d"
    assert one_line("\x1b") != one_line("") and one_line("\u202e") == "\\u202e"


def test_lines_and_blocks(capsys):
    say("a\nb", 1)
    say_block("a\nb\x1b\n")
    assert capsys.readouterr().out == "a b\n1\na\nb\\x1b\n\n"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_log_of_an_exchange(hostile, capsys):
    """Clients whose names, and whose names of arrays, hold what they like."""
    import time

    from fedtailor.remote.wire.messages import (
        Reply,
        Request,
        decode_request,
        encode_reply,
    )
    from fedtailor.remote.wire.refusals import Refusal

    name = f"n{hostile}" if hostile != "\udc80" else "n"

    def refuses(body):
        return encode_reply(Reply.to(decode_request(body), refusal=Refusal.FAILED))

    def answers(body):
        return encode_reply(Reply.to(decode_request(body), {f"y{name}": np.zeros(1)}))

    clients = {name: refuses, "other": answers}
    requests = {
        client: Request("job", 0, 0, "client", client, deadline=time.time() + 30)
        for client in clients
    }
    with Lines(say).of(COORDINATOR_LOG):
        send_and_receive(LoopbackTransport(clients), requests, {}, minimum=0)
    out = capsys.readouterr().out
    assert harmless(out) and out.count("\n") == 2


def test_lines_of_a_federation_are_clean_for_everybody_who_listens(caplog):
    """Also where no `Lines` shows them: Python prints warnings that nobody takes."""
    for log in (COORDINATOR_LOG, client_log("a")):
        log.warning("a\nb\x1b")
    assert caplog.messages == ["a b\\x1b"] * 2


@pytest.fixture(scope="module")
def hostile_table(tmp_path_factory):
    """A table whose clients, columns, categories and classes are hostile names."""
    rng = np.random.default_rng(0)
    names = [name for name in HOSTILE if name not in ("\udc80", "\x00")]
    clients = [*(f"c{name}" for name in names[:4]), r"[1cm]$\x$"]
    number, text, target = f"x{names[0]}", f"t\n{FORGED}{names[1]}", f"y{names[8]}"
    classes = [f"=no{names[1]}\n{FORGED}", "+yes\u202e"]
    rows = [
        [
            client,
            f"{rng.normal():.3f}",
            f"k{names[int(rng.integers(4))]}",
            str(rng.choice(classes)),
        ]
        for client in clients
        for _ in range(30)
    ]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([["who", number, text, target], *rows])
    path = tmp_path_factory.mktemp("hostile") / "a\x1b[31m.csv"
    path.write_bytes(buffer.getvalue().encode())
    return path, clients, (number, text, target)


@pytest.fixture(scope="module")
def hostile_run(hostile_table):
    from fedtailor.algorithms import UCFL
    from fedtailor.data.tables import from_table
    from fedtailor.engine.runs import run
    from fedtailor.models import logistic
    from fedtailor.protocol import SGD

    path, _, (*_, target) = hostile_table
    table = from_table(path, client="who", target=target)
    directory = path.with_name("run\x1b[31m")
    method = UCFL(sgd=SGD(lr=0.1), streams=1)
    run(method, table, logistic(), 1, directory=directory, keep_rows=True)
    return directory


@pytest.mark.slow
def test_commands_on_a_hostile_table(hostile_table, hostile_run, tmp_path, capsys):
    """Reports, lists and errors, in-process: what every command prints."""
    path, clients, (number, _, target) = hostile_table
    run, out = hostile_run, tmp_path / "o\x1b[31m"
    lines = [
        ["diagnose", path, "--client", "who", "--target", target],
        ["diagnose", path, "--client", "who", "--target", number],
        ["diagnose", path, "--client", "wh", "--target", target],
        ["diagnose", path, "--client", number, "--target", target],
        [
            *("compare", path, "--client", "who", "--target", target),
            *("--algorithms", "local", "fedavg", "--rounds", "1", "--seeds", "0"),
            *("--lr", "0.1", "--out", tmp_path / "results"),
        ],
        ["report", tmp_path / "results"],
        ["report", tmp_path / "results", "--format", "markdown"],
        ["report", tmp_path / "results", "--format", "latex"],
        ["report", tmp_path / "results", "--format", "csv"],
        ["report", tmp_path / "results", "--out", tmp_path / "pages"],
        ["describe", path, "--client", "who"],
        ["contributions", tmp_path / "results"],
        ["finalize", tmp_path / "results", "--out", tmp_path / "f\x1b[31m"],
        ["models", tmp_path / "f\x1b[31m"],
        ["card", tmp_path / "f\x1b[31m", "--client", clients[2]],
        ["predict", tmp_path / "f\x1b[31m", path],
        ["unlearn", run, "--client", f"n\n{FORGED}\x1b", "--out", tmp_path / "g"],
        ["models", run],
        ["models", run, "--client", clients[1]],
        ["models", tmp_path / "results"],
        ["models", run, "--client", "c\x1b["],
        ["check", run],
        ["card", run, "--client", clients[2]],
        ["enroll", run, "--data", path, "--client", f"n\n{FORGED}\x1b", "--out", out],
        ["export", run, "--out", tmp_path / "e\x1b[31m"],
        ["predict", run, path, "--out", tmp_path / "p\x1b[31m.csv"],
        ["predict", run, path],
        ["predict", run, path, "--client", clients[0], "--probabilities"],
        ["predict", run, path, "--threshold", "f1"],
        ["predict", run, path, "--client", f"\n{FORGED}\x1b"],
        ["predict", run, run],
        ["run", "fedavg\x1b", "digits-rotated"],
        ["nothing\x1b"],
        ["run", "fedavg", "digits-rotated", "--\x1b"],
        ["run", "fedavg", "digits-rotated", "--rounds", "0", "--traceback"],
    ]
    done = []
    for line in lines:
        done.append(main([str(word) for word in line]))
        found = capsys.readouterr()
        assert harmless(found.out) and harmless(found.err), line
        assert "fault of fedtailor" not in found.err, line
    assert done.count(0) >= 23, list(zip(lines, done, strict=True))
    written = [it for it in tmp_path.rglob("*") if it.suffix in (".md", ".tex", ".csv")]
    assert len(written) > 10
    for file in written:
        assert harmless(file.read_text("utf-8")), file


def test_warnings_of_libraries_are_clean(monkeypatch, capsys):
    """Matplotlib's, of a character that it cannot draw, quotes it."""
    import sys
    import warnings

    from fedtailor.cli import registry

    def warn(arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(f"glyph \x1b[2J\n{FORGED}", stacklevel=1)
        return 0

    def to_standard_error(message, category, *where, **options):
        print(f"{category.__name__}: {message}", file=sys.stderr)

    monkeypatch.setattr(warnings, "showwarning", to_standard_error)
    monkeypatch.setattr(registry, "find", lambda name: warn)
    assert main(["anything"]) == 0
    shown = capsys.readouterr().err
    assert harmless(shown) and shown.startswith("UserWarning: glyph")


def test_progress_in_lines(capsys):
    with progress_of(f"\x1b[2J\n{FORGED}", 1) as progress:

        class Training:
            round, privacy = 1, None

            class metric:
                name = "loss"

            class metrics:
                @staticmethod
                def values(name):
                    return np.array([1.0])

        progress(Training, True)  # pyright: ignore
    shown = capsys.readouterr().err
    assert harmless(shown) and "round 1 of 1" in shown


def test_tables_on_a_terminal(capsys):
    table = ReportTable(
        f"t\x1b\n{FORGED}", ["a\nb", "\x1b[31m"], [["\u202e", "\x9b"]], note="\x07"
    )
    table.show()
    assert harmless(capsys.readouterr().out)


def test_problems_of_tables_are_clean_in_python_too(hostile_table):
    """A notebook prints an error as it is."""
    from fedtailor.data.tables import from_table

    path, _, (_, text, target) = hostile_table
    for options in (
        {"client": "who", "target": "none"},
        {"client": "who", "target": target, "exclude": (f"{text}?",)},
        {"client": "who", "target": target, "split": text, "time": text},
        {"client": "who", "target": target, "positive": "\x1b"},
    ):
        with pytest.raises(ValueError) as found:
            from_table(path, **options)
        assert harmless(str(found.value))


@pytest.mark.parametrize("formula", TOOLS)
def test_formulas_are_guarded(formula):
    assert spreadsheet_text(formula).startswith("'")
    for separator in (";", "\t", "\n", "\r\n", "; "):
        cell = spreadsheet_text(f"a{separator}{formula}")
        assert re.search(r"[;\t\n\r]'\s*[^\s]", cell), cell


def test_numbers_and_plain_text_stay():
    texts = ["-1", "+1.5", "-0.5e-3", "-inf", "nan", "-", "", "a=b", "a-b", "<50K"]
    assert [spreadsheet_text(text) for text in texts] == texts
    text = csv_text(["=x", "y"], [["-1.5", "=1"], ["a", ""]])
    assert list(csv.reader(io.StringIO(text))) == [
        ["'=x", "y"],
        ["-1.5", "'=1"],
        ["a", ""],
    ]


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["=1+1", "b"])])
def test_categories_of_frames_are_no_formulas(kind):
    frame = pl.DataFrame({"x": pl.Series(["=1+1", "b", None], dtype=kind)})
    assert csv_of_frame(frame).splitlines() == ["x", "'=1+1", "b", ""]


def test_frames_keep_their_numbers():
    values = np.array([0.1, -1e-5, -2.0], np.float32)
    frame = pl.DataFrame({"=x": ["=1", None, "-1"], "y": values, "z": [-1, 2, None]})
    numbers = frame.write_csv().splitlines()[1:]
    assert csv_of_frame(frame).splitlines() == [
        "'=x,y,z",
        f"'{numbers[0]}",
        *numbers[1:],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "<script>x</script>",
        "[a](javascript:x)",
        "![a](http://b/c.png)",
        "a|b\\",
        "`|`",
        "**b**",
        "_a_",
        "&lt;b&gt;",
        "\n# head",
        "~~a~~",
        "a\n\n<b>",
        "<!-- a",
    ],
)
def test_text_in_markdown_is_text(text):
    """As a renderer of Markdown shows it."""
    markdown = pytest.importorskip("markdown_it")
    rendered = markdown.MarkdownIt("gfm-like", {"linkify": False}).render(
        f"| x |\n| --- |\n| {markdown_text(text)} |"
    )
    cell = re.search(r"<td>(.*)</td>", rendered, re.DOTALL)
    assert cell and "<" not in cell[1]
    assert html.unescape(cell[1]) == " ".join(text.split())


def test_words_with_underscores_stay_readable():
    assert markdown_text("balanced_accuracy, digits-rotated") == (
        "balanced_accuracy, digits-rotated"
    )


def test_a_path_with_brackets_is_one_file(tmp_path):
    """Polars takes brackets for a pattern of several files."""
    from fedtailor.data.federation.files import from_frame
    from fedtailor.data.tables import from_table
    from fedtailor.data.tables.cells import read_cells

    frame = pl.DataFrame(
        {"c": ["a", "b"] * 9, "x": [0.5] * 17 + [1.0], "y": [0, 1] * 9}
    )
    for name in ("t[1].csv", "t1.csv", "t[1].parquet", "t1.parquet"):
        path = tmp_path / name
        rows = frame if "[" in name else frame.head(3)
        rows.write_csv(path) if name.endswith("csv") else rows.write_parquet(path)
    for name in ("t[1].csv", "t[1].parquet"):
        path = tmp_path / name
        assert len(read_cells(path, {"c": (), "x": ()})) == 18
        assert len(from_table(path, client="c", target="y").x) == 18
        assert len(from_frame(path, client="c", label="y").x) == 18


@pytest.mark.parametrize("text", ["\t", " ", ";", "1", "; ", "\u2028"])
def test_long_cells_are_cleaned_in_linear_time(text):
    """Before, 2,000 tabs took half a minute, and the time grew by their third power."""
    long = 200_000 * text
    assert spreadsheet_text(f"{long}x") == f"{long}x"
    assert one_line(f"{long}\x1b") == one_line(long) + "\\x1b"
    assert spreadsheet_text(f"x{long};=1") == f"x{long};'=1"
