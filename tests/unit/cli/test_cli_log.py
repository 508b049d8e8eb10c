"""`penstock log` over logs on disk: what is shown, in which form, and what is refused with what to do."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugins.written_log import COMMIT_TIME_US, Did, WrittenLog, orders, row

from penstock.changelog.entry import with_checksum
from penstock.changelog.visitor import open_log
from penstock.cli import main as program
from penstock.cli.log_tail import ChangePrinter, NewestNames, Tail
from penstock.cli.log_view import duration, plain, printable
from penstock.model.cell import Cell
from penstock.model.policy import ValuePolicies
from penstock.model.table import ReplicaIdentity

ORDERS = orders()
ITEMS = orders(16400, name="items")
AUDITED = orders(16500, ReplicaIdentity.FULL, name="audited")
SUBCOMMANDS = ("ls", "show", "tail", "verify")


@pytest.fixture
def log(written_log: WrittenLog) -> WrittenLog:
    """Entries 1: inserts; 2 and 3: a transaction in two parts; 4: idle; 5: a truncate; 6: a part that is open."""
    written_log.commit(Did(ORDERS, "I", row(1)), Did(ITEMS, "I", row(2, "\x1b[31mred\nline")))
    written_log.commit(Did(ORDERS, "U", row(3, None), old_key=[b"1"], unchanged=["note"]), is_complete=False)
    written_log.commit(Did(AUDITED, "D", row(4, None, None, None), before=row(4, "old")))
    written_log.idle()
    written_log.commit(Did(ORDERS, "T"))
    written_log.commit(Did(ORDERS, "I", row(9)), is_complete=False)
    return written_log


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as end:
        program.main(["log", *arguments])
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def shown(capsys: pytest.CaptureFixture[str], log: WrittenLog, *arguments: str) -> str:
    code, out, err = ended(capsys, *arguments, "--log", str(log.root))
    assert (code, err) == (0, "")
    return out


def lines(capsys: pytest.CaptureFixture[str], log: WrittenLog, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(capsys, log, *arguments, "--output", "json").splitlines()]


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    found, out, err = ended(capsys, *arguments)
    assert (found, out) == (code, "")
    assert re.fullmatch(r"error: [^\n]+\n    \S[^\n]*\n", err), err
    return err


@pytest.mark.parametrize("command", SUBCOMMANDS)
def test_every_command_teaches_by_example_and_says_what_it_needs(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = ended(capsys, command, "--help")
    assert code == 0
    assert re.search(rf"Example:\s+penstock log {command}", out)
    assert "Needs:" in out


# ls


def test_ls_tells_every_entry_and_all_of_them_together(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, log, "ls").splitlines()
    assert out[0].split() == ["entry", "positions", "written", "transactions", "changes", "size", "tables"]
    assert [re.sub(r"\d{4}-\S+ \S+|[\d.]+ kB|  +", "  ", line.strip()).split() for line in out[1:7]] == [
        ["1", "0/100..0/118", "1", "2I", "public.items,", "public.orders"],
        ["2", "0/118..", "part", "0", "1U", "public.orders"],
        ["3", "0/118..0/130", "1", "1D", "public.audited"],
        ["4", "0/130..0/140", "0", "—", "—"],
        ["5", "0/140..0/158", "1", "1T", "public.orders"],
        ["6", "0/158..", "open", "0", "1I", "public.orders"],
    ]
    assert len({line.index("public") for line in out[1:4]}) == 1
    assert re.fullmatch(r"6 entries, [\d.]+ kB, 0/100\.\.0/158, written \S+Z to \S+Z", out[-1])


def test_ls_keeps_its_columns_on_a_narrow_terminal(
    log: WrittenLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "72")
    monkeypatch.setenv("TERM", "xterm")  # a dumb terminal has 80 columns, whatever is said
    out = shown(capsys, log, "ls").splitlines()
    assert max(map(len, out[:7])) == 72
    assert out[1].lstrip().startswith("1  0/100..0/118")
    assert out[1].endswith("…")


def test_ls_in_json_is_one_document(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, log, "ls", "--output", "json"))
    assert (data["start_lsn"], data["end_lsn"], data["total_entries"]) == ("0/100", "0/158", 6)
    assert data["size_bytes"] == sum(entry.size_bytes for entry in log.entries)
    assert data["oldest"] <= data["newest"]
    assert [each["state"] for each in data["entries"]] == [
        "complete",
        "part",
        "complete",
        "complete",
        "complete",
        "open",
    ]
    assert data["entries"][4]["truncates"] == 1
    assert data["entries"][1]["end_lsn"] is None


def test_ls_of_a_table_counts_that_table_only(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(shown(capsys, log, "ls", "--table", "public.orders", "--output", "json"))
    assert [each["sequence"] for each in data["entries"]] == [1, 2, 5, 6]
    assert data["entries"][0]["inserts"] == 1
    assert data["entries"][0]["tables"] == ["public.orders"]
    assert data["total_entries"] == 6


def test_ls_is_limited_to_the_newest(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    limited = json.loads(shown(capsys, log, "ls", "--limit", "2", "--output", "json"))
    assert [each["sequence"] for each in limited["entries"]] == [5, 6]
    unlimited = json.loads(shown(capsys, log, "ls", "--limit", "0", "--output", "json"))
    assert len(unlimited["entries"]) == 6


def test_ls_of_an_empty_log_says_so(written_log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, written_log, "ls") == "0 entries, 0 B, 0/100..0/100\n"


HELD = {"table": "public.orders", "phase": "errored", "watermark": "0/118", "others": 2}


def report(log: WrittenLog, **fields: object) -> None:
    data = {"log_start": "0/118", "log_end": "0/158", "at": "2024-01-01", **fields}
    (log.root.parent / "status.json").write_text(json.dumps(data))


def test_ls_names_what_holds_the_log_back(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    report(log, log_held_by=HELD, log_keep_ms=3_600_000, log_keep_bytes=10**9)
    *_, kept, held = shown(capsys, log, "ls").splitlines()
    assert kept == "0/100..0/118 is kept for replay: log.keep_ms 1h, log.keep_bytes 1.0 GB"
    assert held == "0/118..0/158 is held by public.orders and 2 more at 0/118 (errored)"
    data = json.loads(shown(capsys, log, "ls", "--output", "json"))
    assert (data["held_by"], data["needed_from"], data["keep_ms"]) == (HELD, "0/118", 3_600_000)


def test_ls_says_nothing_of_holding_where_nothing_is_held(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    report(log, log_held_by=None, log_keep_ms=0, log_keep_bytes=0)
    assert shown(capsys, log, "ls").splitlines()[-1].startswith("6 entries")


# show


def test_show_makes_transactions_old_keys_and_unchanged_columns_visible(
    log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(capsys, log, "show", "1..5").splitlines()
    moment = "2023-11-14T22:13:20.123456Z"
    assert COMMIT_TIME_US % 10**6 == 123_456
    assert out == [
        f"BEGIN 0/110  xid 742  {moment}  2 changes",
        '     1  INSERT    public.orders  id=1 note="x" total="12.50" paid_on="2024-02-29"',
        r'     2  INSERT    public.items  id=2 note="\u001b[31mred\nline" total="12.50" paid_on="2024-02-29"',
        "COMMIT 0/110  ends at 0/118",
        f"BEGIN 0/128  xid 742  {moment}  2 changes",
        '     1  UPDATE    public.orders  id=3 total="12.50" paid_on="2024-02-29"  [unchanged: note]  [old key: id=1]',
        '     2  DELETE    public.audited  [before: id=4 note="old" total="12.50" paid_on="2024-02-29"]',
        "COMMIT 0/128  ends at 0/130",
        f"BEGIN 0/150  xid 742  {moment}  1 change",
        "     1  TRUNCATE  public.orders cascade",
        "COMMIT 0/150  ends at 0/158",
    ]


def test_show_in_json_is_an_object_per_line_with_everything(
    log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, log, "show", "2..5")
    assert [each["type"] for each in found] == ["begin", "update", "delete", "commit", "begin", "truncate", "commit"]
    assert found[1] == {
        "type": "update",
        "table": "public.orders",
        "commit_lsn": "0/128",
        "ordinal": 1,
        "values": {"id": 3, "total": "12.50", "paid_on": "2024-02-29"},
        "unchanged": ["note"],
        "old_key": {"id": 1},
    }
    assert found[2]["before"] == {"id": 4, "note": "old", "total": "12.50", "paid_on": "2024-02-29"}
    assert found[5]["tables"] == ["public.orders"]
    assert found[0]["end_lsn"] == found[3]["end_lsn"] == "0/130"


@pytest.mark.parametrize(
    ("target", "commits"),
    [
        ("1", ["0/110"]),
        ("2", ["0/128"]),  # a part stands for its whole transaction
        ("3", ["0/128"]),
        ("4", []),
        ("1..3", ["0/110", "0/128"]),
        ("3..", ["0/128", "0/150"]),
        ("..2", ["0/110", "0/128"]),
        ("..", ["0/110", "0/128", "0/150"]),
        ("0/110", ["0/110"]),
        ("0/111", ["0/128"]),  # the first at or after
        ("0/110..0/128", ["0/110"]),
        ("0/118..0/130", ["0/128"]),
        ("0/118..5", ["0/128", "0/150"]),
        ("0/110..0/158", ["0/110", "0/128", "0/150"]),
    ],
)
def test_show_finds_what_is_meant(
    log: WrittenLog, capsys: pytest.CaptureFixture[str], target: str, commits: list[str]
) -> None:
    found = lines(capsys, log, "show", target)
    assert [each["commit_lsn"] for each in found if each["type"] == "begin"] == commits


def test_show_of_a_position_and_a_table_is_the_first_transaction_that_touched_it(
    log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    found = lines(capsys, log, "show", "0/118", "--table", "orders")
    assert [each["type"] for each in found] == ["begin", "update", "commit"]


def test_show_stops_at_its_limit_and_says_so(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ended(capsys, "show", "..", "--limit", "1", "--log", str(log.root))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["BEGIN", "1"]
    assert "--limit 1" in err


@pytest.mark.parametrize(
    ("target", "what", "code"),
    [
        ("0/99", "position 0/99 is not in the log, which holds 0/100..0/158", 1),
        ("0/158", "position 0/158 is not in the log, which holds 0/100..0/158", 1),
        ("0/100..0/159", "position 0/159 is not in the log, which holds 0/100..0/158", 1),
        ("6", "the log has no entry 6 that can be shown; it has 1 to 5", 1),
        ("5..1", "the range 5..1 ends before it begins", 2),
        ("nonsense", "'nonsense' is neither the number of an entry nor a position", 2),
        ("0/151", "no transaction committed at or after 0/151; the log ends at 0/158", 1),
    ],
)
def test_show_refuses_what_is_not_there_and_says_what_is(
    log: WrittenLog, capsys: pytest.CaptureFixture[str], target: str, what: str, code: int
) -> None:
    assert what in refused(capsys, code, "show", target, "--log", str(log.root))


def test_show_in_an_empty_log_says_that_it_is_empty(
    written_log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refused(capsys, 1, "show", "0/100", "--log", str(written_log.root))
    assert "which is empty: it starts and ends at 0/100" in err


# errors


@pytest.mark.parametrize("command", [["ls"], ["show", "1"], ["tail"], ["verify"]], ids=lambda each: each[0])
def test_a_folder_without_a_log_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"there is no change log in {tmp_path}" in refused(capsys, 1, *command, "--log", str(tmp_path))


@pytest.mark.parametrize("command", [["ls"], ["show", "1"], ["tail"], ["verify"]], ids=lambda each: each[0])
def test_a_log_of_another_format_is_refused(
    command: list[str], log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    (log.root / "LOG-000000000001.json").write_bytes(with_checksum({"format": 99}))
    err = refused(capsys, 1, *command, "--log", str(log.root))
    assert "LOG-000000000001.json has format 99" in err
    assert "Run the version of Penstock that wrote the log" in err


@pytest.mark.parametrize("command", [["ls"], ["show", "1"], ["tail"]], ids=lambda each: each[0])
def test_an_unknown_table_is_refused_with_those_there_are(
    command: list[str], log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    err = refused(capsys, 1, *command, "--table", "public.nope", "--log", str(log.root))
    assert "the log has no table public.nope; it has: public.audited, public.items, public.orders" in err


def test_the_log_is_found_by_the_configuration_file(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    path = log.root.parents[1] / "penstock.yaml"
    connection = "{host: localhost, name: shop, username: penstock}"
    path.write_text(
        f"pipeline: {{id: shop, publication_name: p, pg_connection: {connection}}}\ndestination: {{memory: {{}}}}\n"
    )
    code, out, _ = ended(capsys, "ls", "-c", str(path), "--output", "json")
    assert code == 0
    assert json.loads(out)["total_entries"] == 6


# verify


def test_verify_says_that_a_log_is_sound(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, log, "verify")
    assert re.fullmatch(rf"✓ {re.escape(str(log.root))} is sound: 6 entries, [\d.]+ kB\n", out)


def test_verify_names_each_damaged_file_and_exits_with_1(log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    (log.root / "entries/000000000004.json").write_text("torn")
    missing = log.entries[0].files[0].path
    (log.root / missing).unlink()
    code, out, _ = ended(capsys, "verify", "--log", str(log.root))
    assert code == 1
    assert "✗ entries/000000000004.json fails its checksum" in out
    assert f"✗ {missing} is missing" in out
    code, out, _ = ended(capsys, "verify", "--log", str(log.root), "--output", "json")
    assert code == 1
    assert {each["path"] for each in json.loads(out)["damaged"]} == {
        "entries/000000000004.json",
        missing,
    }


# tail, a step at a time


def tail_of(log: WrittenLog, position: int | None = None) -> Tail:
    reader = open_log(log.folder)
    start = reader.end_lsn if position is None else type(reader.end_lsn)(position)
    return Tail(reader, start, None, ValuePolicies(), ChangePrinter(NewestNames(log.folder), as_json=True))


def stepped(tail: Tail, capsys: pytest.CaptureFixture[str]) -> list[str]:
    tail.step()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [each["type"] for each in found]


def test_tail_shows_what_comes_once_and_in_order(written_log: WrittenLog, capsys: pytest.CaptureFixture[str]) -> None:
    written_log.commit(Did(ORDERS, "I", row(1)))
    tail = tail_of(written_log)
    assert stepped(tail, capsys) == []
    written_log.commit(Did(ITEMS, "I", row(2)), Did(ITEMS, "T"))
    assert stepped(tail, capsys) == ["begin", "insert", "truncate", "commit"]
    assert stepped(tail, capsys) == []
    written_log.commit(Did(ITEMS, "I", row(3)), is_complete=False)
    assert stepped(tail, capsys) == []
    written_log.commit(Did(ITEMS, "D", row(3, None, None, None)))
    assert stepped(tail, capsys) == ["begin", "insert", "delete", "commit"]


def test_tail_tells_what_was_trimmed_before_it_came_and_goes_on(
    written_log: WrittenLog, capsys: pytest.CaptureFixture[str]
) -> None:
    tail = tail_of(written_log)
    for key in range(3):
        last = written_log.commit(Did(ORDERS, "I", row(key)))
    written_log.trim(last)
    tail.step()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["type"] for each in found] == ["gap", "begin", "insert", "commit"]
    assert (found[0]["start_lsn"], found[0]["end_lsn"]) == ("0/100", "0/130")
    written_log.commit(Did(ORDERS, "I", row(9)))
    assert stepped(tail, capsys) == ["begin", "insert", "commit"]


def test_tail_survives_a_trim_of_what_it_is_about_to_read(
    written_log: WrittenLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tail = tail_of(written_log)
    written_log.commit(Did(ORDERS, "I", row(1)))
    last = written_log.commit(Did(ORDERS, "I", row(2)))
    poll = tail._reader.poll

    def poll_and_trim() -> None:
        poll()
        written_log.trim(last)

    monkeypatch.setattr(tail._reader, "poll", poll_and_trim)
    assert stepped(tail, capsys) == ["gap"]
    monkeypatch.undo()
    assert stepped(tail, capsys) == ["begin", "insert", "commit"]


# values


@given(st.text())
def test_no_row_can_make_a_terminal_do_anything(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (1 << 62, 1 << 62),
        (0.5, 0.5),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal("1E+3"), "1000"),
        (b"\x00\xff", "\\x00ff"),
        (dt.date(1, 1, 1), "0001-01-01"),
        (dt.datetime(2024, 2, 29, 12, 0), "2024-02-29 12:00:00"),  # noqa: DTZ001
        (dt.datetime(2024, 2, 29, 12, 0, tzinfo=dt.UTC), "2024-02-29T12:00:00.000000Z"),
        ([1, None, [Decimal("0.10")]], [1, None, ["0.10"]]),
    ],
    ids=repr,
)
def test_values_survive_json_exactly(value: Cell, expected: object) -> None:
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == expected


@pytest.mark.parametrize(
    ("time_ms", "said"), [(3_600_000, "1h"), (86_400_000, "1d"), (90_000, "90s"), (60_000, "1min"), (1, "1ms")]
)
def test_durations_are_said_in_their_largest_whole_unit(time_ms: int, said: str) -> None:
    assert duration(time_ms) == said
