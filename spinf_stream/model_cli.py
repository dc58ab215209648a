"""`spinf-stream model list | fetch NAME | verify [NAME] | quantize SRC`: the converted models in the cache.

Exit codes: 0 ok, 1 a model is damaged, 2 it cannot be had as asked, 3 its source is away.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spinf_stream.errors import UsageError
from spinf_stream.settings_cli import add_settings, loaded

if TYPE_CHECKING:
    from spinf_stream.config import Settings
    from spinf_stream.engine.tokenizer import Encoder

NAME = "demo, a folder, a .gguf file, or hub-id@revision"


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    lines = {
        "list": "show what is in the cache",
        "fetch": "download if need be, and convert into the cache",
        "verify": "read every byte of a model (of all without NAME) and compare with the recorded digests",
    }
    for action, line in lines.items():
        sub = actions.add_parser(action, help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False)
        if action != "list":
            sub.add_argument("name", metavar="NAME", help=NAME, nargs="?" if action == "verify" else None)
        add_settings(sub, ("cache_dir",))
    line = "write a static fp8 checkpoint; input scales come from the articles of a calibration file"
    sub = actions.add_parser("quantize", help=line, description=line[0].upper() + line[1:] + ".", allow_abbrev=False)
    sub.add_argument("name", metavar="SRC", help=NAME)
    sub.add_argument("--calibration", metavar="FILE", type=Path, required=True, help="JSONL of articles like those to be scored")
    sub.add_argument("--out", metavar="DIR", type=Path, required=True, help="a new folder; load it with --model DIR --dtype fp8")
    add_settings(sub, ("cache_dir", "device", "content", "max_content_tokens"))


def run(args: argparse.Namespace) -> int:
    from spinf_stream.engine.models import ModelAway, ModelError

    try:
        return {"list": _list, "fetch": _fetch, "verify": _verify, "quantize": _quantize}[args.action](args)
    except ModelAway as e:
        raise UsageError(str(e), 3) from None
    except ModelError as e:
        raise UsageError(str(e)) from None


def _list(args: argparse.Namespace) -> int:
    from spinf_stream.engine.cache import cached, models_folder

    home = loaded(args).settings.cache()
    rows = [
        (m.meta["name"], m.meta["family"], "+".join(m.meta["stored"]), _count(m.meta["parameters"]), _bytes(m.size), m.digest[:16])
        for m in cached(home)
    ]
    if not rows:
        print(f"no models in {models_folder(home)}; get one with: spinf-stream model fetch demo")
        return 0
    _table([("NAME", "FAMILY", "STORED", "PARAMETERS", "SIZE", "DIGEST"), *rows])
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from spinf_stream.engine.cache import fetch

    entry = fetch(args.name, loaded(args).settings.cache(), _progress(args.name))
    print(f"{entry.meta['name']}: {entry.meta['family']}, {_bytes(entry.size)}, sha256 {entry.digest}, in {entry.folder}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from spinf_stream.engine import sources
    from spinf_stream.engine.cache import cached, discard, models_folder, usable, verify

    home = loaded(args).settings.cache()
    if args.name is None:
        entries = cached(home)
    else:
        entry = usable(models_folder(home) / sources.find(args.name).label)
        if entry is None:
            raise UsageError(f"model {args.name!r} is not in the cache, or damaged; make it with: spinf-stream model fetch {args.name}", 1)
        entries = [entry]
    damaged = 0
    for entry in entries:
        problems = verify(entry, _progress(entry.meta["name"]))
        for problem in problems:
            print(f"{entry.meta['name']}: {problem}", file=sys.stderr)
        if problems:
            damaged += 1
            discard(entry)
        print(f"{entry.meta['name']}: {'damaged, it is converted again at its next use' if problems else 'ok'}")
    return 1 if damaged else 0


def _quantize(args: argparse.Namespace) -> int:
    from spinf_stream.engine import quantize
    from spinf_stream.engine.weights import fetch, load

    settings = loaded(args).settings
    entry = fetch(args.name, settings.cache(), _progress(args.name))
    quantize.check(entry, args.out)
    stack, encoder = load(args.name, "auto", settings.device, settings.cache())
    texts = _texts(args.calibration, settings, encoder)
    total, seen, show = sum(map(len, texts)), 0, _progress(args.name)

    def done(tokens: int) -> None:
        nonlocal seen
        seen += tokens
        show("calibrating", seen, total)

    amax = quantize.calibrate(stack, texts, done)
    digest = quantize.write(entry, amax, args.out, {"articles": len(texts), "tokens": total})
    print(f"{args.out}: fp8, calibrated on {len(texts)} articles, {total} tokens; sha256 {digest}")
    return 0


def _texts(path: Path, settings: Settings, encoder: Encoder) -> list[list[int]]:
    """The articles of a JSONL file as trunks, exactly as they would be scored."""
    from spinf_stream.engine.content import assemble, tokenise
    from spinf_stream.records import Refused, decode_article

    try:
        lines = path.read_bytes().splitlines()
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror}") from None
    texts = []
    for n, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            content = assemble(decode_article(line), settings.content)
        except Refused as e:
            raise UsageError(f"{path}: line {n}: {e}") from None
        texts.append(tokenise(encoder, content, ("", ""), settings.max_content_tokens).ids)
    return texts


def _progress(name: str) -> Callable[[str, int, int], None]:
    """A line on a terminal that rewrites itself, a line each quarter elsewhere; on stderr."""
    shown = -1
    step = 1 if sys.stderr.isatty() else 25

    def show(stage: str, done: int, total: int) -> None:
        nonlocal shown
        percent = 100 * done // max(total, 1) // step * step
        if percent != shown:
            shown = percent
            end = "\r" if step == 1 and percent < 100 else "\n"
            print(f"{name}: {stage} {percent:3d} %", end=end, file=sys.stderr, flush=True)

    return show


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide)).rstrip())


def _count(n: int) -> str:
    return f"{n / 1e9:.1f} G" if n >= 1e9 else f"{n / 1e6:.1f} M"


def _bytes(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"
