"""From settings to a Scorer that is ready: model, questions, packs, engine, floors.

Raises UsageError, one line, for everything the user can mend.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from spinf_stream.config import Settings
from spinf_stream.engine.asks import Ask
from spinf_stream.engine.executor import Executor
from spinf_stream.engine.fingerprint import fingerprint
from spinf_stream.engine.floors import FloorCache
from spinf_stream.engine.grow import Grower
from spinf_stream.engine.packed import PackedEngine
from spinf_stream.engine.scorer import RunPass
from spinf_stream.engine.scoring import LEAST, ArticleScorer
from spinf_stream.engine.seam import EngineFatal, OutOfMemory, PassInput
from spinf_stream.engine.stack import Stack
from spinf_stream.engine.tokenizer import Encoder
from spinf_stream.engine.weights import ModelAway, ModelError, Unsupported, fetch, load
from spinf_stream.errors import UsageError
from spinf_stream.packs.active import Active, activate_all
from spinf_stream.packs.problems import PackError
from spinf_stream.packs.sources import Catalog, open_catalog
from spinf_stream.questions.cache import cached, load_file
from spinf_stream.questions.compile import build_body
from spinf_stream.questions.plan import F64, Plan
from spinf_stream.questions.problems import QuestionError
from spinf_stream.questions.questionset import QuestionSet
from spinf_stream.questions.spec import Limits

log = logging.getLogger(__name__)
Say = Callable[[str], None]


class Model(NamedTuple):
    stack: Stack
    encoder: Encoder


class Ground(NamedTuple):
    """What stays while questions are exchanged."""

    settings: Settings
    encoder: Encoder
    engine: PackedEngine
    floors: FloorCache
    fingerprint: str  # 64 hex
    say: Say


def open_scorer(settings: Settings, *, progress: bool = False, catalog: Catalog | None = None) -> ArticleScorer:
    """For a fixed set of questions; live.py is for those that may be exchanged. `catalog`: packs from elsewhere than the settings' sources."""
    return scorer_of(*open_asks(settings, progress=progress, catalog=catalog))


def open_asks(settings: Settings, *, progress: bool = False, catalog: Catalog | None = None) -> tuple[Ground, list[Ask]]:
    something_asked(settings)
    ground = open_ground(settings, speaker(progress))
    packs = open_packs(settings, ground.engine.executor.stack.name, catalog)
    sets: list[tuple[QuestionSet, Active | None]] = [(open_questions(ground), None)] if settings.questions else []
    sets += [(pack_questions(ground, pack), pack) for pack in packs]
    if any(questions.slots for questions, _ in sets):
        slots_proved(ground)
    run: RunPass = lambda batch: ground.engine.collect(ground.engine.submit(batch))  # noqa: E731
    return ground, [ask_of(ground, questions, pack, run) for questions, pack in sets]


def open_ground(settings: Settings, say: Say) -> Ground:
    model = open_model(settings, say)
    executor = open_executor(settings, model)
    proved(executor, settings, say)
    full = fingerprint(executor, model.encoder.digest)
    return Ground(settings, model.encoder, PackedEngine(executor, settings.token_budget), FloorCache(settings.cache() / "floors", full), full, say)


def something_asked(settings: Settings) -> None:
    if not settings.questions and not settings.packs:
        raise UsageError("nothing to ask: set questions (a question file) or packs")


def scorer_of(ground: Ground, asks: Sequence[Ask]) -> ArticleScorer:
    """Raises UsageError when the budget leaves no room for an article beside these questions."""
    scorer = ArticleScorer(ground.engine, ground.encoder, asks, ground.settings, ground.fingerprint)
    if (room := min(scorer.limit(scorer.plan_of((i,))) for i in range(len(asks)))) < min(LEAST, ground.settings.max_content_tokens):
        raise UsageError(
            f"token_budget = {ground.engine.first_budget} leaves {room} tokens for the content, at least {LEAST} are needed: raise it by {LEAST - room}"
        )
    return scorer


def open_model(settings: Settings, say: Say) -> Model:
    began = time.monotonic()
    try:
        device = torch.device("cpu" if settings.device == "auto" else settings.device)
    except RuntimeError:
        raise UsageError(f"device = {settings.device}: use auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device = {settings.device}: torch finds no usable CUDA GPU here", 3)
    try:
        fetch(settings.model, settings.cache(), lambda what, done, total: say(f"model {settings.model}: {what} {10 * done // max(total, 1)}0 %"))
        stack, encoder = load(settings.model, settings.dtype, settings.device, settings.cache())
    except ModelAway as e:
        raise UsageError(str(e), 3) from None
    except (ModelError, Unsupported) as e:
        raise UsageError(str(e)) from None
    except RuntimeError as e:
        if "CUDA" not in str(e) and "device" not in str(e):
            raise
        raise UsageError(f"device {settings.device}: {str(e).splitlines()[0]}", 70) from None
    say(f"model {stack.name}: {stack.scheme} on {stack.embed.device}, ready in {time.monotonic() - began:.1f} s")
    return Model(stack, encoder)


def open_executor(settings: Settings, model: Model) -> Executor:
    alnum = model.encoder.starts_alnum()
    if model.stack.embed.device.type == "cuda" and model.stack.embed.dtype != torch.float32:
        from spinf_stream.engine.gpu.executor import GpuExecutor, unsupported

        reason = unsupported(model.stack)
        if reason is None:
            made = GpuExecutor(model.stack, alnum)
            torch.cuda.empty_cache()  # what loading and interleaving took
            return made
        log.warning("model %s runs on the plain executor: %s", model.stack.name, reason)
    from spinf_stream.engine.torch_executor import TorchExecutor

    return TorchExecutor(model.stack, alnum, settings.threads)


def proved(executor: Executor, settings: Settings, say: Say) -> None:
    """On a GPU `bit_exact` is what the bit gates found: run once a card and model, then remembered in the cache."""
    if executor.stack.embed.device.type == "cuda":
        from spinf_stream.engine.gpu.executor import GpuExecutor
        from spinf_stream.engine.gpu.proven import prove

        if isinstance(executor, GpuExecutor):
            with at_start():
                prove(executor, settings.cache() / "gates", say)


def slots_proved(ground: Ground) -> None:
    """Likewise whether decode steps may be used; only where something is to be extracted."""
    if ground.engine.executor.stack.embed.device.type == "cuda":
        from spinf_stream.engine.gpu.executor import GpuExecutor
        from spinf_stream.engine.gpu.proven import prove_slots

        if isinstance(ground.engine.executor, GpuExecutor):
            with at_start():
                prove_slots(ground.engine.executor, ground.settings.cache() / "gates", ground.say)


@contextmanager
def at_start() -> Iterator[None]:
    """What the device says before anything was scored is one line, and no gate's outcome."""
    from spinf_stream.engine.gpu.faults import first_line, said_by_device

    try:
        yield
    except RuntimeError as e:
        if isinstance(e, (EngineFatal, OutOfMemory)) or said_by_device(e):
            raise UsageError(f"the bit gates could not be run: {first_line(e)}", 70) from None
        raise


def open_questions(ground: Ground) -> QuestionSet:
    path = Path(ground.settings.questions or "")
    try:
        return load_file(path, ground.encoder, ground.settings.cache() / "questions", limits_of(ground.settings))
    except QuestionError as e:
        raise UsageError(f"{path}: {e}") from None
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}") from None


def open_packs(settings: Settings, model: str, catalog: Catalog | None = None) -> list[Active]:
    if not settings.packs:
        return []
    catalog = catalog or open_catalog(settings.pack_sources, settings.cache())
    try:
        packs = activate_all(settings.packs, catalog, {model})
    except PackError as e:
        raise UsageError(str(e)) from None
    warn_of(catalog, settings)
    for pack in packs:
        if pack.evaluator.warning:
            log.warning("pack %s: %s", pack.pack.label, pack.evaluator.warning)
    return packs


def warn_of(catalog: Catalog, settings: Settings) -> None:
    """A pack that is found may be another one than was meant: say what the catalog left out beside it."""
    for line in catalog.concerning(entry.id for entry in settings.packs):
        log.warning("packs: %s", line)


def pack_questions(ground: Ground, pack: Active) -> QuestionSet:
    limits = limits_of(ground.settings)
    parts = [b"pack", pack.pack.digest.encode(), pack.context.encode(), msgspec.msgpack.encode(limits)]
    try:
        return cached(ground.settings.cache() / "questions", parts, ground.encoder, lambda: build_body([pack.source()], ground.encoder, limits))
    except QuestionError as e:
        raise UsageError(f"pack {pack.pack.label}: {e}") from None


def limits_of(settings: Settings) -> Limits:
    return Limits(max_slots=settings.max_slots)


def ask_of(ground: Ground, questions: QuestionSet, pack: Active | None, run: RunPass) -> Ask:
    """With its floors; those that the cache lacks are computed now, in a pass by `run`. Raises UsageError, and what `run` raises."""
    engine = ground.engine
    if questions.slots and not isinstance(engine.executor, Grower):
        raise UsageError("extraction slots do not run on this executor: set device = cpu or dtype = float32")
    faults: list[str] | None = getattr(engine.executor, "slot_faults", [])
    if questions.slots and faults is None:
        raise UsageError("nothing was extracted on this card before, and its decode steps are proved at a start: restart the worker for slots")
    if questions.slots and faults:
        record = getattr(engine.executor, "slot_record", None)
        again = f", or remove {record} to run them again" if record else ", or restart to run them again"
        raise UsageError(f"extraction slots do not run on this card, gates of decode steps failed ({'; '.join(faults)}): set device = cpu or dtype = float32{again}")

    def read(plan: Plan) -> tuple[F64, F64]:
        ground.say(f"floors: {plan.prompts} prompts, {plan.nodes} tokens")
        bos = np.array(ground.encoder.bos, np.int32)
        index = engine.register(plan)
        try:
            tree = run(PassInput(bos, np.array([0, len(bos)], np.int64), np.array([index], np.int32))).trees[0]
        finally:
            engine.forget([index])
        return tree.cand, tree.end

    return Ask(questions, ground.floors.floors(questions.plan, questions.floor_keys, questions.floor.tolist(), questions.subset, read), pack)


def speaker(progress: bool) -> Say:
    """Start-up progress, each line once: to the terminal when asked for, else to the log."""
    last = ""

    def say(line: str) -> None:
        nonlocal last
        if line == last:
            return
        last = line
        if progress:
            print(line, file=sys.stderr, flush=True)
        else:
            log.info("%s", line)

    return say
