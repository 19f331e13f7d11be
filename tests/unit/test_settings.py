"""Settings: from the environment alone, secrets from files, every mistake in one line that names the variable."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from consumer.errors import ConfigurationError
from consumer.settings import Settings, load

SECRET = "s3cret-of-the-endpoint"


def test_nothing_set_gives_the_documented_defaults() -> None:
    settings = load({})
    assert (settings.lease_seconds, settings.beat_seconds, settings.run_deadline_seconds) == (30.0, 10.0, 900.0)
    assert (settings.runs_in_flight, settings.dedup_days, settings.agents) == (256, 14, ("consumer.agents",))


def test_other_variables_of_the_environment_do_not_matter() -> None:
    assert load({"PATH": "/bin", "ROWCALL_UNKNOWN": "1"}) == load({})


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("ROWCALL_AGENTS", " a.b , c ", "agents", ("a.b", "c")),
        ("ROWCALL_LEASE_SECONDS", "45.5", "lease_seconds", 45.5),
        ("ROWCALL_AUTO_ACTIVATE", "false", "auto_activate", False),
        ("KAFKA_OPTIONS", "a.b=c, d=e=f", "kafka_options", {"a.b": "c", "d": "e=f"}),
        ("ROWCALL_HEALTH_PORT", "0", "health_port", 0),
    ],
)
def test_a_variable_sets_its_field(name: str, text: str, field: str, value: object) -> None:
    assert getattr(load({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ROWCALL_LEASE_SECONDS", "soon"),
        ("ROWCALL_LEASE_SECONDS", "0"),
        ("ROWCALL_RUNS_IN_FLIGHT", "-1"),
        ("ROWCALL_HEALTH_PORT", "65536"),
        ("ROWCALL_LOG_LEVEL", "LOUD"),
        ("KAFKA_OPTIONS", "nonsense"),
        ("MODEL_RESPONSE_FORMAT", "xml"),
    ],
)
def test_a_wrong_value_is_refused_and_named(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        load({name: text})


def test_a_fault_is_told_in_our_words_alone() -> None:
    with pytest.raises(ConfigurationError, match=r"^settings: DATABASE_URL: holds a blank"):
        load({"DATABASE_URL": "postgresql://u@h/d x"})


def test_several_mistakes_are_told_together() -> None:
    with pytest.raises(ConfigurationError, match=r"ROWCALL_LEASE_SECONDS.*ROWCALL_POLL_SECONDS"):
        load({"ROWCALL_LEASE_SECONDS": "x", "ROWCALL_POLL_SECONDS": "y"})


@pytest.mark.parametrize(("beat", "lease", "fits"), [("10", "30", True), ("10.1", "30", False), ("10", "29", False)])
def test_a_beat_of_more_than_a_third_of_the_lease_is_refused(beat: str, lease: str, fits: bool) -> None:
    environment = {"ROWCALL_BEAT_SECONDS": beat, "ROWCALL_LEASE_SECONDS": lease}
    if fits:
        load(environment)
    else:
        with pytest.raises(ConfigurationError, match="third"):
            load(environment)


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    settings = load({"MODEL_API_KEY_FILE": str(tmp_path / "key")})
    assert settings.model_api_key is not None and settings.model_api_key.get_secret_value() == SECRET


def test_a_secret_given_twice_or_from_a_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(SECRET)
    with pytest.raises(ConfigurationError, match="both set"):
        load({"MODEL_API_KEY": "x", "MODEL_API_KEY_FILE": str(tmp_path / "key")})
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load({"MODEL_API_KEY_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("MODEL_API_KEY", SECRET),
        ("KAFKA_PASSWORD", SECRET),
        ("DATABASE_URL", f"postgresql://u:{SECRET}@h/x"),
        ("DATABASE_URL", f"host=h password={SECRET}"),
    ],
)
def test_a_secret_is_shown_nowhere(name: str, text: str) -> None:
    settings = load({name: text})
    assert SECRET not in f"{settings!r} {settings} {settings.shown()} {settings.model_dump()}"
    assert settings.shown()[name] == "***"


def test_a_secret_is_not_in_the_message_about_another_mistake() -> None:
    with pytest.raises(ConfigurationError) as refused:
        load({"MODEL_API_KEY": SECRET, "ROWCALL_LEASE_SECONDS": "x"})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "option",
    [
        "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.jaas.config",
        "sasl.oauthbearer.client.secret", "aws.session.token", "sasl.credential",
    ],
)  # fmt: skip
def test_a_secret_among_the_options_of_kafka_is_shown_nowhere(option: str) -> None:
    settings = load({"KAFKA_OPTIONS": f"security.protocol=SASL_SSL,{option}={SECRET}"})
    assert settings.shown()["KAFKA_OPTIONS"] == f"security.protocol=SASL_SSL,{option}=***"
    assert SECRET not in f"{settings!r} {settings}"
    assert settings.secrets() == {SECRET}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:{} x@h/d",
        "postgresql://u:{}/x@h/d",
        "postgresql://u:12/{}@h/d",
        "postgresql://u:{}@x@h/d",
        "postgresql://u:{}?x@h/d",
        "postgresql://u:{}#x@h/d",
        "postgresql://u:{}%zz@h/d",
        "postgresql://u:{}@h:port/d",
        "postgresql://u:{}@h:99999/d",
        "postgresql://u:{}@h:0/d",
        "postgresql://u:{}@[::1/d",
        "postgresql://u@h/d?{}",
        "postgresql://u:{}@h/d?port=x",
        "mysql://u:{}@h/d",
        "POSTGRESQL://u:{}@h/d",
        "{}",
        "host=h password={} x",
        "host=h password='{}",
    ],
)
def test_a_database_url_that_cannot_be_taken_apart_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^settings: DATABASE_URL: ") as refused:
        load({"DATABASE_URL": url.format(SECRET)})
    assert SECRET not in str(refused.value)
    with pytest.raises(ValidationError) as raw:
        Settings.model_validate({"DATABASE_URL": url.format(SECRET)})
    assert SECRET not in str(raw.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:a%20b%2Fc%40d@h:5433/d", "postgresql://u:***@h:5433/d"),
        ("postgres://u@h/d", "postgres://u@h/d"),
        ("postgresql://h1:1,h2:2/d?target_session_attrs=any", "postgresql://h1:1,h2:2/d?target_session_attrs=any"),
        ("postgresql://u:it's@[::1]:5432/d?options=-c%20a%3D@", "postgresql://u:***@[::1]:5432/d?options=-c%20a%3D@"),
        ("postgresql:///d?host=/run/pg&user=u&password=abc", "postgresql:///d?host=/run/pg&user=u&password=***"),
        ("host=h port=5433 password='a b' dbname=d", "host=h port=5433 password=*** dbname=d"),
        (r"password=a\ b host = h", "password=*** host = h"),
        ("", ""),
    ],
)
def test_every_other_form_of_a_database_url_is_kept_and_shown_without_its_password(url: str, shown: str) -> None:
    settings = load({"DATABASE_URL": url})
    assert settings.database_url.get_secret_value() == url
    assert settings.database_shown() == shown


def test_the_password_of_the_database_is_known_in_each_form_in_which_it_may_be_met() -> None:
    assert load({"DATABASE_URL": "postgresql://u:a%20b@h/d?sslpassword=c%2Fd"}).secrets() == {
        "a%20b", "a b", "c%2Fd", "c/d"
    }  # fmt: skip
    assert "it's here" in load({"DATABASE_URL": r"host=h password='it\'s here'"}).secrets()


def test_every_setting_is_shown_under_its_variable() -> None:
    assert set(load({}).shown()) == {field.alias for field in Settings.model_fields.values()}
