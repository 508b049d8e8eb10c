"""The `penstock` command: its words, its help, and how it ends.

Rule 1: an error of ours is one message and its remedy on standard error, never a traceback.
Rule 2: nothing heavy is imported before a command runs, so that help is instant.
"""
# ruff: noqa: ARG001, D301  (--debug is looked for by main itself; \b keeps the lines of an example)

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from penstock.errors import ConfigError, PenstockError

FAILED = 1
WRONG_USAGE = 2
_DEBUG_FLAG = "--debug"

app = typer.Typer(
    name="penstock",
    help="Replicate Postgres tables into a lake: copied once, then kept current, exactly once.",
    epilog="Start with `penstock demo` to see it work, or `penstock init` to write a configuration file.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: quick, and the examples stay as they are written.
    rich_markup_mode=None,
)


class Output(StrEnum):
    """How results are printed."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How log lines look; `auto` is text on a terminal and JSON otherwise."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LakeFormat(StrEnum):
    """What the tables of a lake are."""

    DELTA = "delta"
    ICEBERG = "iceberg"


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="The configuration file.", show_default="./penstock.yaml", metavar="FILE"),
]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Print for people, or for programs.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The least that is logged.")]
LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="How log lines look on standard error.")]
DebugOption = Annotated[bool, typer.Option(_DEBUG_FLAG, help="Show the traceback of an error.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"penstock {version('penstock')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Replicate Postgres tables into a lake: copied once, then kept current, exactly once."""


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("penstock.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a commented configuration file.

    \b
    Example:  penstock init
    Needs:    nothing; it never touches a database.
    """
    from penstock.cli.init import write_config

    write_config(path, force=force)


@app.command()
def check(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark too; takes some seconds.")] = False,
    debug: DebugOption = False,
) -> None:
    """Test what a pipeline needs, and say what to fix.

    Looks at the source, its settings, rights, publication and slot, at the state folder, the change log's place, the
    destination and Java.

    \b
    Example:  penstock check -c shop.yaml
    Needs:    the configuration file. Changes nothing on the source.
    Exits 1 if anything would keep the pipeline from running.
    """
    from penstock.cli.check import run_check

    _exit_unless(run_check(config, as_json=output is Output.JSON, with_spark=spark))


@app.command()
def run(
    config: ConfigOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="Copy, catch up with the source as it is now, and exit.")
    ] = False,
    output: OutputOption = Output.TEXT,
    log_level: LogLevelOption = LogLevel.INFO,
    log_format: LogFormatOption = LogFormat.AUTO,
    debug: DebugOption = False,
) -> None:
    """Copy every table, then follow its changes until stopped.

    \b
    Example:  penstock run
              penstock run --once
    Needs:    the configuration file; a source that `penstock check` is content with.
    Ctrl-C or SIGTERM finishes what is under way and stops; a second one stops at once, and loses nothing either.
    """
    from penstock.cli.run import run_pipeline

    logging = _configure_logging(log_level, log_format)
    _exit_unless(run_pipeline(config, once=once, as_json=output is Output.JSON, configure_logging=logging))


@app.command()
def status(
    config: ConfigOption = None,
    output: OutputOption = Output.TEXT,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds until Ctrl-C.")] = False,
    debug: DebugOption = False,
) -> None:
    """Show positions, lag, phases, and errors with their remedies.

    \b
    Example:  penstock status --watch
              penstock status --output json
    Needs:    the configuration file, on the machine that the replicator runs on. Changes nothing.
    """
    from penstock.cli.status import show_status

    show_status(config, as_json=output is Output.JSON, watch=watch)


@app.command()
def setup(debug: DebugOption = False) -> None:
    """Fetch what Spark needs, once, and say which Java will be used.

    \b
    Example:  penstock setup
    Needs:    network access to a Maven repository the first time; nothing afterwards.
    """
    from penstock.cli.setup import set_up

    set_up()


@app.command()
def demo(
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long the workload runs.")] = 20,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="An empty folder to work in, which is kept.", show_default="a temporary one"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder, and so the lake.")] = False,
    rows: Annotated[int, typer.Option("--rows", min=100, help="About how many rows there are at first.")] = 100_000,
    seed: Annotated[int, typer.Option("--seed", help="What the workload's dice start from.")] = 20_240_229,
    lake_format: Annotated[LakeFormat, typer.Option("--format", help="What the lake's tables are.")] = LakeFormat.DELTA,
    log_level: LogLevelOption = LogLevel.WARNING,
    log_format: LogFormatOption = LogFormat.AUTO,
    debug: DebugOption = False,
) -> None:
    """Watch a bundled Postgres being replicated and compared.

    A live workload runs on it while its tables go into a local lake; then the two are compared, value for value.

    \b
    Example:  penstock demo --seconds 10 --keep
    Needs:    pip install 'penstock[demo]'; no server, no Java, no configuration.
    Exits 1 if a single value differs between source and lake.
    """
    from penstock.cli.demo import DemoOptions, run_demo

    options = DemoOptions(
        seconds=seconds, directory=directory, keep=keep, rows=rows, seed=seed, lake_format=lake_format.value
    )
    _exit_unless(run_demo(options, configure_logging=_configure_logging(log_level, log_format)))


tables_app = typer.Typer(
    name="tables",
    help="Look at one table, try it again, or copy it anew; the replicator must be stopped for changes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(tables_app)
TableArgument = Annotated[str, typer.Argument(help="schema.table, table, or its oid.", metavar="TABLE")]


@tables_app.command("list")
def tables_list(config: ConfigOption = None, output: OutputOption = Output.TEXT, debug: DebugOption = False) -> None:
    """List the tables with their phases, watermarks, and why they stopped.

    \b
    Example:  penstock tables list
    """
    from penstock.cli.tables import print_tables

    print_tables(config, as_json=output is Output.JSON)


@tables_app.command("rollback")
def tables_rollback(table: TableArgument, config: ConfigOption = None, debug: DebugOption = False) -> None:
    """Let a table that stopped with an error go on where it failed, once the cause is mended.

    \b
    Example:  penstock tables rollback public.orders
    Needs:    the replicator to be stopped; its next run tries again, from the table's own position.
    """
    from penstock.cli.tables import roll_back

    phase = roll_back(config, table)
    typer.echo(f"{table} is back in phase {phase.kind}; the next `penstock run` goes on from there")


@tables_app.command("resync")
def tables_resync(table: TableArgument, config: ConfigOption = None, debug: DebugOption = False) -> None:
    """Copy a table anew with the next run.

    \b
    Example:  penstock tables resync public.orders
    Needs:    the replicator to be stopped. The destination's table is emptied when the copy starts.
    """
    from penstock.cli.tables import resync

    resync(config, table)
    typer.echo(f"{table} is copied anew by the next `penstock run`")


log_app = typer.Typer(
    name="log",
    help="Look into the change log: its entries, the changes themselves, live or not, and whether it is sound.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(log_app)
LogOption = Annotated[
    str | None,
    typer.Option("--log", help="The log's folder, or its URL.", show_default="the file's", metavar="PATH"),
]
LogTableOption = Annotated[
    str | None, typer.Option("--table", "-t", help="Only this one: schema.table, table, or its oid.", metavar="TABLE")
]


@log_app.command("ls")
def log_ls(
    config: ConfigOption = None,
    log: LogOption = None,
    table: LogTableOption = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=0, help="The newest so many; 0 for all.", show_default="100, JSON: all"),
    ] = None,
    output: OutputOption = Output.TEXT,
    debug: DebugOption = False,
) -> None:
    """List the log's entries, newest last, and say what keeps them.

    An entry is what was received at once. One that is a part holds a piece of a transaction that a later entry
    ends; an open one, of a transaction that has not committed.

    \b
    Example:  penstock log ls
              penstock log ls --table public.orders --limit 10
              penstock log ls --log /srv/shop/.penstock/log --output json
    Needs:    the configuration file, or the folder of a log. Only reads, beside a running replicator too.
    """
    from penstock.cli.log import list_entries, locate

    list_entries(locate(config, log), table=table, limit=limit, as_json=output is Output.JSON)


@log_app.command("show")
def log_show(
    target: Annotated[
        str, typer.Argument(help="An entry, a position, or a range of either.", metavar="SEQUENCE|LSN|RANGE")
    ],
    config: ConfigOption = None,
    log: LogOption = None,
    table: LogTableOption = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=0, help="The first so many changes; 0 for all.", show_default="all"),
    ] = None,
    output: OutputOption = Output.TEXT,
    debug: DebugOption = False,
) -> None:
    """Show changes in commit order, with their values.

    Lines are cut at the terminal's width; JSON, an object per line, has everything.

    \b
    Example:  penstock log show 42                          the changes of entry 42
              penstock log show 42..45                      of entries 42 to 45
              penstock log show 0/16B3748                   the first transaction that commits there or later
              penstock log show 0/16B3748..0/16B9000        those that commit from the first to before the second
              penstock log show 0/16B3748.. -t public.orders --output json
    Needs:    the configuration file, or the folder of a log. Prints rows of your tables. Only reads.
    """
    from penstock.cli.log import locate, show_changes

    show_changes(locate(config, log), target, table=table, limit=limit, as_json=output is Output.JSON)


@log_app.command("tail")
def log_tail(
    config: ConfigOption = None,
    log: LogOption = None,
    table: LogTableOption = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="A position, or beginning.", show_default="the end", metavar="LSN|beginning"),
    ] = None,
    output: OutputOption = Output.TEXT,
    debug: DebugOption = False,
) -> None:
    """Follow the log: show changes as they come, until Ctrl-C.

    Changes are removed once every table has them, unless log.keep_ms keeps them: a line tells when some were
    removed before they could be shown.

    \b
    Example:  penstock log tail
              penstock log tail --from beginning --table public.orders
              penstock log tail --output json | jq 'select(.type == "delete")'
    Needs:    the configuration file, or the folder of a log. Prints rows of your tables. Only reads.
    """
    from penstock.cli.log import follow_changes, locate

    follow_changes(locate(config, log), start, table=table, as_json=output is Output.JSON)


@log_app.command("verify")
def log_verify(
    config: ConfigOption = None,
    log: LogOption = None,
    output: OutputOption = Output.TEXT,
    debug: DebugOption = False,
) -> None:
    """Read the whole log and name every file that is damaged or missing.

    Checks the entries' checksums and order, the data files' presence, size, page checksums and columns, and that
    they hold what the entries say.

    \b
    Example:  penstock log verify
              penstock log verify --log /backup/log --output json
    Needs:    the configuration file, or the folder of a log. Only reads, beside a running replicator too.
    Exits 1 if anything is damaged.
    """
    from penstock.cli.log import locate, verify_log

    _exit_unless(verify_log(locate(config, log), as_json=output is Output.JSON))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        app(args=arguments, prog_name="penstock")
    except Exception as error:  # noqa: BLE001  # the last word: nobody above can say it better
        if _DEBUG_FLAG in arguments:
            traceback.print_exception(error)
        sys.exit(_explain(error))
    sys.exit(0)


def _explain(error: Exception) -> int:
    """Print what went wrong and what to do, and return the exit code."""
    known = list(dict.fromkeys(_penstock_errors(error)))
    for message, remedy in known:
        _print_error(message, remedy)
    if not known:
        # Not its text: a library's message may quote a row.
        _print_error(
            f"something unexpected happened: {type(error).__name__}",
            f"Run it again with {_DEBUG_FLAG} for the details, and please report them.",
        )
    return WRONG_USAGE if isinstance(error, ConfigError) else FAILED


def _penstock_errors(error: Exception) -> Iterator[tuple[str, str]]:
    if isinstance(error, PenstockError):
        yield error.message, error.remedy
    elif isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            yield from _penstock_errors(each)


def _print_error(message: str, remedy: str) -> None:
    typer.echo(f"error: {message}", err=True)
    typer.echo(f"    {remedy}", err=True)


def _exit_unless(is_good: bool) -> None:
    if not is_good:
        raise typer.Exit(FAILED)


def _configure_logging(level: LogLevel, form: LogFormat) -> Callable[[], None]:
    """Return what sets logging up; a live view has to be there first, so that lines appear above it."""

    def configure() -> None:
        from penstock.telemetry.log import configure_logging

        as_json = None if form is LogFormat.AUTO else form is LogFormat.JSON
        configure_logging(level=level.value, as_json=as_json)

    return configure


if __name__ == "__main__":
    main()
