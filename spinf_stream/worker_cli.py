"""`spinf-stream worker`: read articles from Kafka, write scores to Kafka.

--check tests everything that a start needs and exits; --burst stops at the end offsets captured at the start. SIGHUP reads
the packs and the question file anew (engine/live.py), SIGTERM drains.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys

from spinf_stream.settings_cli import ALL, add_settings, loaded


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--burst", action="store_true", help="stop at the end offsets of the start, exit 0")
    parser.add_argument("--check", action="store_true", help="test brokers, topics, Redis, model and questions; exit 0, 2 or 3")
    add_settings(parser, ALL)


def run(args: argparse.Namespace) -> int:
    from spinf_stream.engine.live import open_live
    from spinf_stream.engine.runner import Runner
    from spinf_stream.packs import baseline
    from spinf_stream.stream.logs import set_up
    from spinf_stream.stream.tracing import check as check_tracing
    from spinf_stream.stream.worker import check, serve

    settings = loaded(args).settings
    set_up(settings)
    check_tracing()
    baseline.read(settings.drift_baseline)  # before a model is loaded in vain
    if args.check:
        code = asyncio.run(check(settings))
        open_live(settings)
        print("model and questions: ready", file=sys.stderr)
        return code
    reload = asyncio.Event()
    if not sys.stderr.isatty():  # there it would be the terminal's end
        signal.signal(signal.SIGHUP, lambda *_: reload.set())  # remembered until the worker runs
    scorer = open_live(settings, progress=sys.stderr.isatty())
    gc.freeze()  # a full collection over a tokenizer's and automata's objects stops every thread for 0.1 s
    return asyncio.run(serve(settings, scorer, Runner(scorer.engine), burst=args.burst, reload=reload))
