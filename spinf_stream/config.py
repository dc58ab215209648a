"""One settings struct: flags > SPINF_STREAM_* > TOML file > defaults. Unknown keys are errors.

A secret is any setting whose name ends in `_password` or `_secret`; it can also be read from a file by `<name>_file`,
and `describe` never prints it. The comment behind a setting is its help: settings_cli.py reads it there.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

PREFIX = "SPINF_STREAM_"
Positive = Annotated[int, Meta(ge=1)]
Millis = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Meta(ge=0)]


class ConfigError(ValueError):
    """A setting that cannot be used; the message names the setting, where it came from and what to do."""


class PackEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1)]
    version: str | None = None
    context: str | None = None
    parameters: dict[str, str | int | float | bool] = {}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # what is asked
    questions: str | None = None  # a question file, JSON or TOML
    packs: tuple[PackEntry, ...] = ()  # ids, or [{id, version?, context?, parameters?}]; with a version: id@version
    pack_sources: tuple[str, ...] = ()  # folders or github:owner/repo@ref#path, beside the official packs
    content: str = "{title}\n\n{text}"  # how an article with a title becomes content; without one it is the text
    max_content_tokens: Positive = 4096  # tokens of an article that are read
    overlong: Literal["truncate", "reject", "solo"] = "truncate"  # what a longer one meets: solo = a pass of its own
    max_slots: Positive = 10  # extraction slots (queries times combinations) of one question file or pack
    scores_format: Literal["full", "compact"] = "full"  # compact = float32 arrays, for thousands of questions

    # who answers
    model: str = "demo"  # demo, a folder, a .gguf file, or hub-id@revision
    device: str = "auto"  # auto, cpu, cuda, cuda:N
    dtype: Literal["auto", "float32", "bfloat16", "fp8"] = "auto"  # auto = float32 on a CPU, fp8 where it can be, else bfloat16
    token_budget: Annotated[int, Meta(ge=1, le=2**24)] | None = None  # rows a pass; default 32768 on a GPU, 2048 on a CPU
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None  # CPU threads of the engine; default torch's own choice
    cache_dir: str = ""  # default $XDG_CACHE_HOME/spinf-stream

    # Kafka
    brokers: str = "127.0.0.1:9092"  # host:port, several with commas
    input_topic: str = "articles"  # what is read
    output_topic: str = "scores"  # what is written
    dlq_topic: str = "articles.dlq"  # where goes what can never be scored
    group: str = "spinf-stream"  # workers of one group share the input's partitions
    delivery: Literal["at_least_once", "exactly_once"] = "at_least_once"  # exactly_once = a transaction for each partition
    producer_idempotence: bool = True  # false only for brokers that cannot (the demo's)
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"  # of what is written
    session_timeout_ms: Millis = 45_000  # a worker silent for so long loses its partitions
    max_poll_interval_ms: Millis = 300_000  # one that reads nothing for so long too
    commit_interval_ms: Millis = 1_000  # between two commits of offsets, at least once
    kafka_security: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = "plaintext"  # how brokers are spoken to
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"  # with sasl_*
    kafka_username: str = ""  # with sasl_*
    kafka_password: str = ""  # with sasl_*
    kafka_password_file: str = ""  # a file that holds it
    kafka_ca_file: str = ""  # PEM: whom to trust; default the system's
    kafka_cert_file: str = ""  # PEM: a client certificate, with its key
    kafka_key_file: str = ""  # PEM: the key of it
    corrupt_batches: Literal["stop", "skip"] = "stop"  # one whose bytes are damaged at the broker: skip loses its records
    carry_headers: tuple[str, ...] = ()  # input headers copied to the output, beside traceparent and tracestate
    create_topics: bool = False  # at the start, those that are missing

    # dedup
    redis_url: str = ""  # "" = no dedup; redis://, rediss:// or embedded:// (demo only)
    redis_password: str = ""  # beside the address
    redis_password_file: str = ""  # a file that holds it
    redis_timeout_ms: Millis = 100  # longest wait for Redis; then the text is scored
    dedup_secret: str = ""  # HMAC key of what is kept in Redis; required with redis_url unless embedded
    dedup_secret_file: str = ""  # a file that holds it
    dedup_ttl_seconds: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 7 * 24 * 3600  # how long scores are kept there
    on_duplicate: Literal["republish", "skip"] = "republish"  # the known scores under its own id, or nothing

    # flow
    max_wait_ms: Millis = 250  # a window closes this long after its oldest article, or when full
    max_inflight_records: Positive = 1024  # past the oldest unfinished record of a partition; at least once: of all partitions together, published and not yet committed, which is what a sudden death repeats
    max_inflight_bytes: Positive = 256 * 2**20  # of records read, scored and not yet published: then reading pauses; done marks wait for Redis in a quarter of it, past that they are left out
    max_age_seconds: Seconds | None = None  # older records are `expired`
    drain_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 25.0  # to finish what is in flight when told to stop or to give partitions back
    dlq_max_run: Positive = 100  # dead letters in a row that stop the worker
    dlq_max_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.10  # of the last 1,000 records
    on_limit: Literal["exit", "wait"] = "exit"  # when one of these two or a damaged batch stopped it: wait = leave the group and stay until told to end, so that no supervisor starts it into the same again

    # looking in
    host: str = "127.0.0.1"  # where metrics and health are served
    port: Annotated[int, Meta(ge=0, le=65535)] = 9464  # of them; 0 = any that is free
    drift_baseline: str = ""  # a file of `packs baseline`: what score drift is measured against, before a pack's calibration
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # the least that is logged
    log_format: Literal["auto", "text", "json"] = "auto"  # auto = text on a terminal, JSON elsewhere

    def __repr__(self) -> str:
        """For logs and tracebacks: only what differs from the defaults, secrets masked."""
        changed = {n: getattr(self, n) for n in self.__struct_fields__ if getattr(self, n) != getattr(_DEFAULTS, n)}
        return f"Settings({', '.join(f'{name}={shown(name, value)}' for name, value in changed.items())})"

    def cache(self) -> Path:
        base = self.cache_dir or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "spinf-stream")
        return Path(base)


_DEFAULTS = Settings()


class Origin(NamedTuple):
    name: str
    value: str  # printable, secrets masked
    origin: str  # "flag", "env SPINF_STREAM_X", "FILE", "default"


class Loaded(NamedTuple):
    settings: Settings
    origins: dict[str, str]

    def describe(self) -> Iterator[Origin]:
        for name in Settings.__struct_fields__:
            yield Origin(name, shown(name, getattr(self.settings, name)), self.origins.get(name, "default"))


def load(
    flags: Mapping[str, Any] | None = None,
    file: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Loaded:
    """Layer the sources and check the whole. `flags` holds only what was given on the command line.

    Raises ConfigError for an unknown key, a value of the wrong type, or settings that contradict each other.
    """
    env = os.environ if env is None else env
    hints = typing.get_type_hints(Settings, include_extras=True)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    path = file or env.get(PREFIX + "CONFIG")
    if path:
        try:
            table = tomllib.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as e:  # not TOML, not UTF-8, no name of a file
            raise ConfigError(f"config file {path!r}: {e}" if "\0" in str(path) else f"config file {path}: {e}") from None
        except RecursionError:
            raise ConfigError(f"config file {path}: nested too deep") from None
        for name, value in table.items():
            _known(name, hints, f"config file {path}")
            values[name], origins[name] = _convert(name, value, hints[name], f"config file {path}"), str(path)
    for key, raw in env.items():
        if not key.startswith(PREFIX) or key == PREFIX + "CONFIG":
            continue
        name = key[len(PREFIX) :].lower()
        _known(name, hints, f"environment variable {key}")
        values[name], origins[name] = _convert(name, raw, hints[name], f"environment variable {key}"), f"env {key}"
    for name, value in (flags or {}).items():
        _known(name, hints, f"flag --{name.replace('_', '-')}")
        values[name], origins[name] = _convert(name, value, hints[name], f"flag --{name.replace('_', '-')}"), "flag"

    for name in [n for n in hints if n.endswith("_file") and n.removesuffix("_file") in hints]:
        secret = name.removesuffix("_file")
        if values.get(name):
            if values.get(secret):
                raise ConfigError(f"{secret} and {name} are both set: keep one")
            try:
                values[secret] = Path(values[name]).read_text("utf-8").strip()
            except (OSError, ValueError) as e:
                raise ConfigError(f"{name}: {e}") from None
            origins[secret] = f"file {values[name]}"
    settings = Settings(**values)
    _check(settings)
    return Loaded(settings, origins)


def shown(name: str, value: Any) -> str:
    """A value as it may be printed: secrets masked, passwords cut out of addresses."""
    if name.endswith(("_password", "_secret")):
        return "***" if value else '""'
    if isinstance(value, str) and "://" in value:
        return masked(value)
    if isinstance(value, tuple):
        value = [masked(part) if isinstance(part, str) else part for part in value]
    return msgspec.json.encode(value).decode()


def masked(url: str) -> str:
    """An address without its password, be it before the host or in the query string."""
    try:
        urlsplit(url)
    except ValueError:
        return "*** (not an address)"
    who, at, host = url.rpartition("@")  # a password may hold anything, a broken address too
    scheme, there, user = who.rpartition("://") if "://" in who else ("", "", who)
    if at and ":" in user:
        who = f"{scheme}{there}{user.partition(':')[0]}:***"
    return re.sub(r"(?i)([?&](?:password|token|secret)=)[^&#]*", r"\1***", f"{who}{at}{host}")


def _known(name: str, hints: Mapping[str, Any], where: str) -> None:
    if name not in hints:
        import difflib

        near = difflib.get_close_matches(name, list(hints), 1)
        raise ConfigError(f"{where}: there is no setting '{name}'" + (f", did you mean '{near[0]}'?" if near else ""))


def _convert(name: str, value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, str):
        _plain(name, value, where)
    if isinstance(value, str) and not _is_text(hint):
        text = value.strip()
        if isinstance(hint, types.UnionType) and str in typing.get_args(hint):  # str | None
            return text if text.lower() not in ("none", "null", "") else None
        if _is_list(hint) and not text.startswith(("[", "{")):
            value = [part.strip() for part in text.split(",") if part.strip()]
        elif text.lower() in ("true", "false"):
            value = text.lower() == "true"
        elif text.lower() in ("none", "null", ""):
            value = None
        else:
            try:
                value = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError) as e:
                if _is_list(hint):
                    raise ConfigError(f"{where}: {name}: begins like JSON and is none: {e}") from None
                value = text
    if PackEntry in typing.get_args(hint):
        value = _packs(value, f"{where}: {name}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {name}: must be a finite number")
    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError as e:
        words = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        why = f"is none of {', '.join(words)}" if words else "a secret of the wrong type" if "password" in name or "secret" in name else str(e)
        forms = ": write ids, id@version, or [{id, version?, context?, parameters?}]" if PackEntry in typing.get_args(hint) else ""
        raise ConfigError(f"{where}: {name}: {why}{forms}") from None


def _packs(value: Any, where: str) -> Any:
    """An id alone, or id@version, is an entry; so is an object that is not in a list. Raises ConfigError."""
    if not isinstance(value, list):
        value = [value]
    entries = []
    for v in value:
        if isinstance(v, str):
            id_, at, version = v.partition("@")
            if at and (not id_ or not version or "@" in version):
                raise ConfigError(f"{where}: {v!r}: write id or id@version")
            v = {"id": id_, "version": version or None}
        elif isinstance(v, dict) and "@" in str(v.get("id")):
            raise ConfigError(f"{where}: {v['id']!r}: in an object the version is a key of its own, beside id")
        entries.append(v)
    return entries


def _plain(name: str, value: str, where: str) -> None:
    """Raises ConfigError for what no setting can hold, without quoting it: it may be a secret."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: {name}: is not UTF-8") from None
    if "\0" in value and name != "content":
        raise ConfigError(f"{where}: {name}: holds a NUL character")


def _is_text(hint: Any) -> bool:
    return hint is str or typing.get_origin(hint) is Literal


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is tuple or (isinstance(hint, types.UnionType) and any(map(_is_list, typing.get_args(hint))))


def _check(s: Settings) -> None:
    for name in ("input_topic", "output_topic", "dlq_topic"):
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic := getattr(s, name)) or topic in (".", ".."):
            raise ConfigError(f"{name}: a topic's name is 1 to 249 letters, digits, dots, dashes and underscores")
    if not s.group:
        raise ConfigError("group must not be empty")
    if len({s.input_topic, s.output_topic, s.dlq_topic}) < 3:
        raise ConfigError("input_topic, output_topic and dlq_topic must be three different topics")
    if s.delivery == "exactly_once" and not s.producer_idempotence:
        raise ConfigError("delivery = exactly_once needs producer_idempotence = true")
    if s.redis_url and not s.redis_url.startswith(("redis://", "rediss://", "embedded://")):
        raise ConfigError(f"redis_url: {masked(s.redis_url)} is not redis://, rediss:// or embedded://")
    if s.redis_url.startswith(("redis://", "rediss://")) and not s.dedup_secret:
        raise ConfigError("redis_url needs dedup_secret (or dedup_secret_file): cached scores are signed with it")
    if "{text}" not in s.content:
        raise ConfigError("content: the template must contain {text}")
    if "sasl" in s.kafka_security and not (s.kafka_username and s.kafka_password):
        raise ConfigError(f"kafka_security = {s.kafka_security} needs kafka_username and kafka_password (or kafka_password_file)")
    if bool(s.kafka_cert_file) != bool(s.kafka_key_file):
        raise ConfigError("kafka_cert_file and kafka_key_file go together")
