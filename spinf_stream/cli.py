"""The command `spinf-stream`. Each subcommand lives in its own module and is imported only when it is called.

Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 a dependency is away, 4 a limit stopped the worker, 70 the engine
is gone, 75 the drain deadline passed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import threading
from collections.abc import Sequence

from spinf_stream import __version__

# command -> (module, one line of help). A module offers arguments(parser) and run(args) -> exit code.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "score a few sample articles on an embedded broker"),
    "worker": ("worker_cli", "read articles from Kafka, write scores to Kafka"),
    "score": ("score_cli", "score a JSONL file"),
    "produce": ("produce_cli", "send a JSONL file to the articles topic"),
    "tail": ("tail_cli", "show the scores topic as a table"),
    "dlq": ("dlq_cli", "list the dead letters, or send them again"),
    "replay": ("replay_cli", "score a span of the input again"),
    "topics": ("topics_cli", "create the topics"),
    "model": ("model_cli", "fetch, list and verify models"),
    "questions": ("questions_cli", "check a question file"),
    "packs": ("packs_cli", "list, show, validate, compare and evaluate packs"),
    "calibrate": ("calibrate_cli", "fit a pack's constants and thresholds on labelled data"),
    "index": ("index_cli", "fold scores into daily series"),
    "plan": ("plan_cli", "from a load to GPUs and partitions, by measured rates"),
    "top": ("top_cli", "a live view of workers"),
    "selftest": ("selftest_cli", "run the bit gates of this machine's engine"),
    "schema": ("schema_cli", "print the JSON Schemas of the records"),
    "config": ("config_cli", "print each setting with its origin"),
}


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole parser, with the arguments of `command` alone filled in: the other modules stay unimported."""
    top = argparse.ArgumentParser(prog="spinf-stream", description="Score a firehose of text.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"spinf-stream {__version__}")
    subs = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, line) in COMMANDS.items():
        sub = subs.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False)
        if name == command:
            importlib.import_module(f"spinf_stream.{module}").arguments(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    command = next((a for a in argv if not a.startswith("-")), None)
    args = parser(command).parse_args(argv)
    from spinf_stream.errors import UsageError

    try:
        return int(importlib.import_module(f"spinf_stream.{COMMANDS[args.command][0]}").run(args))
    except UsageError as e:
        print(f"spinf-stream {args.command}: {e}", file=sys.stderr)
        return e.code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def entry() -> int:
    """The console script. An engine thread that is inside torch when the interpreter ends would abort the process and
    take the exit code with it: then everything is flushed and the process left at once."""
    code = main()
    if any(t.name.startswith("engine-") and t.is_alive() for t in threading.enumerate()):
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(entry())
