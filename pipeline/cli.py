"""`penstock-pipeline`: the jobs on Spark, one verb each. Exit codes are those of `pipeline.exits`.

It is a separate command because the daemon's must not need Spark. Spark is not imported before a job runs.
"""

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple, NoReturn

import typer

from ..config.errors import ConfigError
from ..config.pipeline import PipelineSettings, load_pipeline
from ..runtime import logs
from .exits import PipelineExit

DEFAULT_CONFIG: Final = Path("/etc/penstock/pipeline.toml")
DEFAULT_MASTER: Final = "local[*]"

app = typer.Typer(
    name="penstock-pipeline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Lands records from Kafka in tables, and proves that every record arrived.",
)


class _JobOptions(NamedTuple):
    """Command-line options that all jobs share."""

    master: str
    print_submit: bool
    submitted: bool
    debug: bool


ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help=f"Settings file. Default: {DEFAULT_CONFIG}", show_default=False)
]
MasterOption = Annotated[
    str, typer.Option("--master", help="Where Spark runs: `local[*]`, or the URL of a cluster (`spark://host:7077`).")
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Process only this topic of the settings; may be given more than once."),
]
PrintOption = Annotated[bool, typer.Option("--print-submit", help="Only print the equivalent spark-submit command.")]
SubmittedOption = Annotated[
    bool, typer.Option("--submitted", hidden=True, help="spark-submit runs this process and has set the master.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show whole tracebacks and Spark's own log.")]


@app.command()
def land(
    config: ConfigOption = None,
    master: MasterOption = DEFAULT_MASTER,
    once: Annotated[bool, typer.Option("--once", help="Land the records available now, and exit.")] = False,
    topic: TopicOption = None,
    new_query: Annotated[
        bool,
        typer.Option(
            "--new-query",
            help="Create a new checkpoint after the old one was lost: records still in Kafka land a second time.",
        ),
    ] = False,
    print_submit: PrintOption = False,
    submitted: SubmittedOption = False,
    debug: DebugOption = False,
) -> None:
    """Land topics in tables, each record in exactly one row, until SIGTERM or SIGINT; then finish the current batch."""
    flags = [*(["--once"] if once else []), *(["--new-query"] if new_query else []), *_topic_words(topic)]

    def job(settings: PipelineSettings, where: str | None) -> int:
        from . import runner

        runner.land(settings, master=where, once=once, new_query=new_query)
        return PipelineExit.OK

    _run("land", config, flags, topic, job, _JobOptions(master, print_submit, submitted, debug))


@app.command()
def audit(
    config: ConfigOption = None,
    master: MasterOption = DEFAULT_MASTER,
    topic: TopicOption = None,
    from_hour: Annotated[
        str | None,
        typer.Option("--from", metavar="HOUR", help="First hour, YYYY-MM-DD-HH in UTC. Default: all unsealed hours."),
    ] = None,
    to_hour: Annotated[str | None, typer.Option("--to", metavar="HOUR", help="Last hour.")] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Path of the HTML report. Default: audit.report.")
    ] = None,
    print_submit: PrintOption = False,
    submitted: SubmittedOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare the records that daemons took with the tables; report missing and duplicated records."""
    flags = _topic_words(topic)
    for name, value in (("--from", from_hour), ("--to", to_hour), ("--report", report and str(report.absolute()))):
        flags += [name, value] if value else []

    def job(settings: PipelineSettings, where: str | None) -> int:
        from . import runner
        from .hours import HourRange
        from .report.verdict import judge

        try:
            hours = HourRange.parse(from_hour, to_hour)
        except ValueError as error:
            raise ConfigError([f"--from, --to: {error}"]) from error
        if report is not None:
            settings = settings.model_copy(update={"audit": settings.audit.model_copy(update={"report": report})})
        result = runner.audit(settings, master=where, hours=hours)
        verdict = judge(result.data)
        found = [f"- {': '.join((finding.title, ' '.join(finding.sentences)))}" for finding in verdict.findings]
        _say("\n".join([verdict.headline, verdict.summary, *found, f"report: {result.report}"]))
        return result.exit_code

    _run("audit", config, flags, topic, job, _JobOptions(master, print_submit, submitted, debug))


@app.command()
def seal(
    config: ConfigOption = None,
    master: MasterOption = DEFAULT_MASTER,
    topic: TopicOption = None,
    print_submit: PrintOption = False,
    submitted: SubmittedOption = False,
    debug: DebugOption = False,
) -> None:
    """Declare complete the hours that the last audit found complete, compact them and remove duplicates."""

    def job(settings: PipelineSettings, where: str | None) -> int:
        from . import runner

        result = runner.seal(settings, master=where)
        _say(str(result))
        return PipelineExit.OK

    _run("seal", config, _topic_words(topic), topic, job, _JobOptions(master, print_submit, submitted, debug))


@app.command()
def retire(
    incarnation: Annotated[
        str, typer.Argument(help="The daemon's incarnation, 12 hex digits, as the report shows it.")
    ],
    config: ConfigOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Retire the daemon even if its last heartbeat is recent.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Declare that a lost daemon will send no more: its unsent records count as lost, and hours can be sealed."""
    if not (len(incarnation) == 12 and set(incarnation) <= set("0123456789abcdef")):
        _fail(f"{incarnation!r} is no incarnation: 12 hex digits are wanted", PipelineExit.USAGE)

    def job(settings: PipelineSettings, _where: str | None) -> int:
        from .retire import retire as write

        done = write(
            settings, incarnation, now_ms=time.time_ns() // 1_000_000, force=force, timeout_s=settings.kafka_timeout
        )
        word = "retired" if done.written else "closed already, nothing written"
        _say(f"{incarnation} on {done.heartbeat.host}: {word}")
        return PipelineExit.OK

    _run("retire", config, [], None, job, _JobOptions("", print_submit=False, submitted=False, debug=debug))


@app.command()
def check(
    config: ConfigOption = None,
    debug: DebugOption = False,
) -> None:
    """Check the settings, the jars, and that Kafka has the topics, without starting Spark. Reports every problem."""

    def job(settings: PipelineSettings, _where: str | None) -> int:
        from . import runner, session
        from .failures import JobRefusedError
        from .kafka_admin import KafkaUnreachableError

        problems: list[str] = []
        try:
            _ = session.jars_of(settings)
        except ConfigError as error:
            problems += error.problems
        try:
            runner.require_topics(settings, [*settings.topics, settings.audit.topic])
        except (JobRefusedError, KafkaUnreachableError) as error:
            if not problems:
                raise
            problems.append(str(error))
        if problems:
            raise ConfigError(problems)
        _say("the settings are good, the jars are there, and Kafka has the topics")
        return PipelineExit.OK

    _run("check", config, [], None, job, _JobOptions("", print_submit=False, submitted=False, debug=debug))


def _run(
    verb: str,
    config: Path | None,
    flags: list[str],
    topics: list[str] | None,
    job: Callable[[PipelineSettings, str | None], int],
    how: _JobOptions,
) -> NoReturn:
    """Load the settings, run the job, and exit with its code, or with a message and the code of the failure."""
    path = config or DEFAULT_CONFIG
    try:
        settings = load_pipeline(path)
        logs.configure("pipeline", level="DEBUG" if how.debug else settings.log_level)
        from . import runner

        settings = runner.with_log(runner.with_topics(settings, topics or []), debug=how.debug)
        if how.print_submit:
            from . import submit

            words = [verb, *flags, *(["--debug"] if how.debug else [])]
            sys.stdout.write(submit.spark_submit_command(settings, path, words, master=how.master) + "\n")
            raise typer.Exit(int(PipelineExit.OK))
        code = job(settings, None if how.submitted else how.master)
    except ConfigError as error:
        _trace(how.debug)
        for problem in error.problems:
            sys.stderr.write(f"penstock-pipeline: {problem}\n")
        raise typer.Exit(int(PipelineExit.USAGE)) from error
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - reported in one sentence, with the traceback for unexpected errors
        from .failures import failure_message, is_expected

        if how.debug or not is_expected(error):
            _trace(shown=True)
        _fail(failure_message(error), PipelineExit.FAILED)
    raise typer.Exit(int(code))


def _trace(shown: bool) -> None:
    if shown:
        traceback.print_exc()


def _topic_words(topics: list[str] | None) -> list[str]:
    return [word for topic in topics or [] for word in ("--topic", topic)]


def _fail(text: str, code: PipelineExit) -> NoReturn:
    sys.stderr.write(f"penstock-pipeline: {text}\n")
    raise typer.Exit(int(code))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> NoReturn:
    try:
        app()
    except BrokenPipeError:
        sys.exit(0)
    sys.exit(0)


if __name__ == "__main__":
    main()
