"""Settings as flags: every command that needs some of them names them here."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from spinf_stream.config import ConfigError, Loaded, Settings, load
from spinf_stream.errors import UsageError
from spinf_stream.settings_help import line, meanings

QUESTIONS = ("questions", "packs", "pack_sources", "content", "max_content_tokens", "overlong", "scores_format")
MODEL = ("model", "device", "dtype", "token_budget", "threads", "cache_dir")
KAFKA = (
    "brokers", "input_topic", "output_topic", "dlq_topic", "kafka_security", "kafka_sasl_mechanism", "kafka_username",
    "kafka_password_file", "kafka_ca_file", "kafka_cert_file", "kafka_key_file",
)  # fmt: skip
# secrets come from files or the environment, never from a command line that others can read
ALL = tuple(n for n in Settings.__struct_fields__ if not n.endswith(("_password", "_secret")))


def add_settings(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    group = parser.add_argument_group("settings", "flags > SPINF_STREAM_* > config file > defaults; see `spinf-stream config`")
    group.add_argument("--config", metavar="FILE", help="TOML file of settings")
    for name in names:
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, dest=name, metavar=meanings()[name].values, default=argparse.SUPPRESS, help=line(name).replace("%", "%%"))


def loaded(args: argparse.Namespace, **fixed: object) -> Loaded:
    """Settings of a command line; `fixed` holds what the command itself decides. Raises UsageError."""
    flags = {n: v for n, v in vars(args).items() if n in Settings.__struct_fields__}
    try:
        return load({**flags, **fixed}, args.config)
    except ConfigError as e:
        raise UsageError(str(e)) from None
