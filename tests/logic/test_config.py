"""Settings: layering, origins, what is refused, and that a secret is never shown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from spinf_stream import cli
from spinf_stream.config import ConfigError, Loaded, Settings, load, masked, shown
from spinf_stream.settings_cli import ALL, QUESTIONS
from spinf_stream.settings_help import line, meanings


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> Path:
        file = tmp_path / "spinf.toml"
        file.write_text(text, "utf-8")
        return file

    return write


def origin(loaded: Loaded, name: str) -> str:
    return next(o.origin for o in loaded.describe() if o.name == name)


def test_flags_beat_environment_beats_file_beats_default(toml) -> None:
    file = toml('group = "file"\nport = 1\nmax_wait_ms = 1')
    loaded = load({"group": "flag"}, file, {"SPINF_STREAM_GROUP": "env", "SPINF_STREAM_PORT": "2"})
    s = loaded.settings
    assert (s.group, s.port, s.max_wait_ms, s.session_timeout_ms) == ("flag", 2, 1, 45_000)
    assert [origin(loaded, n) for n in ("group", "port", "max_wait_ms", "session_timeout_ms")] == [
        "flag", "env SPINF_STREAM_PORT", str(file), "default",
    ]  # fmt: skip


def test_the_environment_may_name_the_file(toml) -> None:
    file = toml('input_topic = "news"')
    assert load(env={"SPINF_STREAM_CONFIG": str(file)}).settings.input_topic == "news"


def test_every_setting_is_described_once() -> None:
    assert [o.name for o in load(env={}).describe()] == list(Settings.__struct_fields__)


@pytest.mark.parametrize(
    ("raw", "expect"),
    [("", ()), ("a", ("a",)), ("a, b", ("a", "b")), ('["a,b"]', ("a,b",))],
)
def test_lists_in_the_environment(raw: str, expect: tuple[str, ...]) -> None:
    assert load(env={"SPINF_STREAM_CARRY_HEADERS": raw}).settings.carry_headers == expect


@pytest.mark.parametrize(
    ("name", "raw", "expect"),
    [
        ("CREATE_TOPICS", "True", True), ("THREADS", "", None), ("THREADS", "none", None), ("THREADS", "4", 4),
        ("BROKERS", "5", "5"), ("QUESTIONS", "123", "123"), ("QUESTIONS", "null", None), ("MAX_AGE_SECONDS", "60", 60.0),
        ("GROUP", "true", "true"), ("DLQ_MAX_RATIO", "0.5", 0.5),
    ],
)  # fmt: skip
def test_text_in_the_environment_becomes_the_settings_type(name: str, raw: str, expect: object) -> None:
    assert getattr(load(env={f"SPINF_STREAM_{name}": raw}).settings, name.lower()) == expect


def test_packs_from_a_file(toml) -> None:
    packs = load(None, toml('[[packs]]\nid = "a"\nparameters = {x = 1}\n[[packs]]\nid = "b"\nversion = "2"'), {}).settings.packs
    assert [(p.id, p.version, p.parameters) for p in packs] == [("a", None, {"x": 1}), ("b", "2", {})]


@pytest.mark.parametrize(
    ("raw", "expect"),
    [
        ("news", [("news", None)]), ("a/b@1.2.0, news", [("a/b", "1.2.0"), ("news", None)]), ("", []), ('{"id": "x"}', [("x", None)]),
        ('["news", {"id": "x", "version": "2"}]', [("news", None), ("x", "2")]),
    ],
)  # fmt: skip
def test_a_pack_may_be_its_id_alone(toml, raw: str, expect: list[tuple[str, str | None]]) -> None:
    assert [(p.id, p.version) for p in load({"packs": raw}, env={}).settings.packs] == expect
    assert [(p.id, p.version) for p in load(env={"SPINF_STREAM_PACKS": raw}).settings.packs] == expect


def test_a_pack_may_be_its_id_alone_in_a_file(toml) -> None:
    packs = load(None, toml('packs = ["a@1", {id = "b", context = "c"}]'), {}).settings.packs
    assert [(p.id, p.version, p.context) for p in packs] == [("a", "1", None), ("b", None, "c")]


def test_every_setting_says_what_it_means_and_may_be() -> None:
    found = meanings()
    assert list(found) == list(Settings.__struct_fields__) and all(m.words and m.values for m in found.values())
    assert found["delivery"].values == "at_least_once|exactly_once" and found["threads"].values == "1..1024"
    assert found["port"].values == "0..65535" and found["dlq_max_ratio"].values == ">0..1" and found["create_topics"].values == "true|false"
    assert found["max_age_seconds"].values == found["max_wait_ms"].values == "N" and found["packs"].values == "A,B,..."
    assert line("max_wait_ms") == "a window closes this long after its oldest article, or when full (default 250)"
    assert line("dedup_secret").startswith("HMAC key") and "default" not in line("dedup_secret")


@pytest.mark.parametrize("command", ["worker", "config", "score"])
def test_help_shows_the_meaning_and_the_values(command: str, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown_ = " ".join(capsys.readouterr().out.split())
    names = ALL if command != "score" else QUESTIONS
    assert all(" ".join(line(n).split()) in shown_ and f"--{n.replace('_', '-')} {meanings()[n].values}" in shown_ for n in names)


def test_config_explains(capsys) -> None:
    assert cli.main(["config", "--explain", "--threads", "3"]) == 0
    said = capsys.readouterr().out
    assert "# CPU threads of the engine" in said and "[1..1024]\nthreads" in said and said.count("\n# ") >= len(ALL)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("broker = 'x'", "there is no setting 'broker', did you mean 'brokers'?"),
        ("[kafka]\nbrokers = 'x'", "there is no setting 'kafka'"),
        ("port = true", "port: Expected `int`, got `bool`"),
        ("port = 9.5", "port: Expected `int`, got `float`"),
        ("port = 70000", "port: Expected `int` <= 65535"),
        ("token_budget = 0", "token_budget: Expected `int` >= 1"),
        ("max_age_seconds = nan", "max_age_seconds: must be a finite number"),
        ("drain_seconds = inf", "drain_seconds: must be a finite number"),
        ("delivery = 'twice'", "delivery: is none of at_least_once, exactly_once"),
        ("packs = 5", "packs: Expected `object`, got `int` - at `$[0]`: write ids, id@version, or [{id, version?, context?, parameters?}]"),
        ("packs = ['']", "packs: "),
        ("threads = 10000000", "threads: Expected `int` <= 1024"),
        ("token_budget = 100000000", "token_budget: Expected `int` <= 16777216"),
        ("session_timeout_ms = 3000000000", "session_timeout_ms: Expected `int` <= 2147483647"),
        ("drain_seconds = 1e9", "drain_seconds: Expected `float` <= 86400"),
        ("packs = [{id = 'a', colour = 1}]", "packs: Object contains unknown field `colour`"),
        ("input_topic = 'scores'", "three different topics"),
        ("dlq_topic = ''", "dlq_topic: a topic's name"),
        ("input_topic = 'a b'", "input_topic: a topic's name"),
        ("group = ''", "group must not be empty"),
        ("content = 'no place for it'", "must contain {text}"),
        ("redis_url = 'http://x'", "redis_url"),
        ("redis_url = 'redis://x'", "redis_url needs dedup_secret"),
        ("delivery = 'exactly_once'\nproducer_idempotence = false", "producer_idempotence = true"),
        ("kafka_security = 'sasl_ssl'", "needs kafka_username and kafka_password"),
        ("kafka_cert_file = 'x'", "go together"),
        ("port =", "spinf.toml"),
        ("packs = [{id = 'news@0.1.0'}]", "packs: 'news@0.1.0': in an object the version is a key of its own"),
        ("packs = '{bad'", "packs: begins like JSON and is none"),
        ("packs = 'news@'", "packs: 'news@': write id or id@version"),
        ("packs = ['@1']", "packs: '@1': write id or id@version"),
        ("packs = 'a@1@2'", "packs: 'a@1@2': write id or id@version"),
        ("carry_headers = '[a'", "carry_headers: begins like JSON and is none"),
        ("kafka_ca_file = \"a\\u0000b\"", "kafka_ca_file: holds a NUL"),
        ("dedup_secret_file = \"a\\u0000b\"", "dedup_secret_file: holds a NUL"),
    ],
)
def test_what_cannot_be_used_says_where_and_what(toml, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(None, toml(text), {})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_unknown_variable_and_flag_are_named() -> None:
    with pytest.raises(ConfigError, match=r"environment variable SPINF_STREAM_PROT: .*'port'"):
        load(env={"SPINF_STREAM_PROT": "1"})
    with pytest.raises(ConfigError, match="flag --max-wait: "):
        load({"max_wait": 1}, env={})


def test_other_peoples_variables_are_left_alone() -> None:
    assert load(env={"SPINF_TEST_KAFKA": "x", "HOME": "/"}).settings == Settings()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        load(None, tmp_path / "nowhere.toml", {})


def test_a_secret_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    loaded = load(env={"SPINF_STREAM_DEDUP_SECRET_FILE": str(file)})
    assert loaded.settings.dedup_secret == "hunter2"
    assert origin(loaded, "dedup_secret") == f"file {file}"
    with pytest.raises(ConfigError, match="both set"):
        load({"dedup_secret": "x", "dedup_secret_file": str(file)}, env={})
    with pytest.raises(ConfigError, match=r"kafka_password_file: .*nowhere"):
        load({"kafka_password_file": str(tmp_path / "nowhere")}, env={})
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="dedup_secret_file"):
        load({"dedup_secret_file": str(file)}, env={})


SECRETS = {
    "kafka_password": "hunter2", "dedup_secret": "hunter2", "redis_password": "hunter2",
    "redis_url": "rediss://me:hunter2@r.example:6380/1?password=hunter2&db=1", "pack_sources": ("https://me:hunter2@p.example/x",),
}  # fmt: skip


def test_no_secret_is_ever_shown() -> None:
    loaded = load(SECRETS, env={})
    printed = "\n".join(f"{o.name} = {o.value} ({o.origin})" for o in loaded.describe()) + repr(loaded) + str(loaded.settings)
    assert "hunter2" not in printed
    assert "rediss://me:***@r.example:6380/1?password=***&db=1" in printed
    assert "https://me:***@p.example/x" in printed


def test_no_secret_gets_into_an_error(toml) -> None:
    for text in ("kafka_password = ['hunter2']", "redis_url = 'http://me:hunter2@x'", "redis_url = 'redis://me:hunter2@x'", "redis_url = 'x://:hunter2@[::1'"):
        with pytest.raises(ConfigError) as refused:
            load(None, toml(text), {})
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "expect"),
    [
        ("redis://localhost/0", "redis://localhost/0"), ("redis://u@h/0", "redis://u@h/0"), ("redis://:p@h", "redis://:***@h"),
        ("redis://u:p@ss@h:1/2", "redis://u:***@h:1/2"), ("redis://[::1", "*** (not an address)"),
    ],
)  # fmt: skip
def test_masked(url: str, expect: str) -> None:
    assert masked(url) == expect


def test_an_empty_secret_is_shown_as_empty() -> None:
    assert (shown("dedup_secret", ""), shown("dedup_secret", "x")) == ('""', "***")


def test_settings_are_frozen_and_plain_data() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]
    assert msgspec.convert(msgspec.to_builtins(Settings()), Settings) == Settings()


def test_what_is_not_utf8_is_an_error_of_one_line(capsys, monkeypatch) -> None:
    monkeypatch.setenv("SPINF_STREAM_MODEL", "/m/caf\udce9")
    assert cli.main(["config"]) == 2
    said = capsys.readouterr().err
    assert said == "spinf-stream config: environment variable SPINF_STREAM_MODEL: model: is not UTF-8\n"
    monkeypatch.delenv("SPINF_STREAM_MODEL")
    assert cli.main(["config", "--group", "\udce9"]) == 2
    with pytest.raises(ConfigError, match="config file"):
        load(None, "a\0b", {})
    with pytest.raises(ConfigError) as refused:
        load(env={"SPINF_STREAM_KAFKA_PASSWORD": "hunter2\udce9"})
    assert "hunter2" not in str(refused.value)
