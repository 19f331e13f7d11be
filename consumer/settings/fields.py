"""Every setting, once. README's configuration table is tested against this class."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from consumer.errors import ConfigurationError
from consumer.settings import database_url
from consumer.settings.database_url import MASK

# Names of librdkafka properties whose values are secrets, or hold one: sasl.password, ssl.key.pem, sasl.jaas.config.
_SECRET_NAME: Final = re.compile(r"password|passphrase|secret|key|token|jaas|credential", re.IGNORECASE)
_RATE: Final = r"^([1-9][0-9]{0,8}/(s|min|h|day))?$"  # or none


class Settings(BaseModel):
    """Every setting with its default; the field's alias is the environment variable's name."""

    model_config = ConfigDict(
        extra="forbid", populate_by_name=True, frozen=True, protected_namespaces=(), hide_input_in_errors=True
    )

    database_url: SecretStr = Field(
        SecretStr("postgresql://postgres@127.0.0.1:5432/rowcall"),
        alias="DATABASE_URL",
        description="Postgres that holds the `rowcall` schema and the tables the agents write to",
    )
    kafka_bootstrap_servers: str = Field(
        "127.0.0.1:9092", alias="KAFKA_BOOTSTRAP_SERVERS", description="Kafka brokers, host:port[,host:port…]"
    )
    kafka_options: dict[str, str] = Field(
        default_factory=dict,
        alias="KAFKA_OPTIONS",
        repr=False,
        description="more librdkafka properties, `name=value` separated by commas (TLS, SASL)",
    )
    kafka_password: SecretStr | None = Field(
        None, alias="KAFKA_PASSWORD", description="`sasl.password` for the brokers, kept out of KAFKA_OPTIONS"
    )
    kafka_group: str = Field("rowcall", alias="KAFKA_GROUP", description="consumer group of intake")
    topic_partitions: int = Field(
        6,
        gt=0,
        alias="ROWCALL_TOPIC_PARTITIONS",
        description="partitions of the topics that producers create; more workers than that share nothing",
    )
    schema_registry_url: str = Field(
        "http://127.0.0.1:8081",
        alias="SCHEMA_REGISTRY_URL",
        description="Apicurio Registry, without a path",
    )
    connect_url: str = Field("http://127.0.0.1:8083", alias="CONNECT_URL", description="Kafka Connect's REST API")
    connectors: str = Field(
        "",
        alias="ROWCALL_CONNECTORS",
        description="folder of connector files for `rowcall connectors`; empty for those that ship",
    )
    keep_connectors: bool = Field(
        True,
        alias="ROWCALL_KEEP_CONNECTORS",
        description="intake restarts what has failed of the connectors in ROWCALL_CONNECTORS",
    )

    model_base_url: str = Field(
        "http://127.0.0.1:8080/v1",
        alias="MODEL_BASE_URL",
        description="OpenAI-compatible endpoint; `/chat/completions` is appended",
    )
    model_api_key: SecretStr | None = Field(
        None, alias="MODEL_API_KEY", description="sent as MODEL_AUTH_SCHEME in MODEL_AUTH_HEADER; empty sends none"
    )
    model_name: str = Field("rowcall-tiny", alias="MODEL_NAME", description="model named in each request")
    model_auth_header: str = Field(
        "Authorization", alias="MODEL_AUTH_HEADER", description="header that carries the key"
    )
    model_auth_scheme: str = Field(
        "Bearer", alias="MODEL_AUTH_SCHEME", description="word before the key; empty for the key alone"
    )
    model_timeout_seconds: float = Field(
        120.0, gt=0, alias="MODEL_TIMEOUT_SECONDS", description="total deadline of one call, keep-alives included"
    )
    model_max_tokens: int = Field(
        1024, gt=0, alias="MODEL_MAX_TOKENS", description="`max_tokens` of each request; always sent"
    )
    model_retries: int = Field(
        2, ge=0, alias="MODEL_RETRIES", description="repeats of one call inside an attempt, for retryable failures"
    )
    model_max_retry_after_seconds: float = Field(
        120.0,
        gt=0,
        alias="MODEL_MAX_RETRY_AFTER_SECONDS",
        description="a longer Retry-After is taken as a spent quota and pauses the agent",
    )
    model_price_input: Decimal = Field(
        Decimal(0),
        ge=0,
        le=1_000_000,
        alias="MODEL_PRICE_INPUT",
        description="price of a million prompt tokens, in the currency of your budgets",
    )
    model_price_output: Decimal = Field(
        Decimal(0),
        ge=0,
        le=1_000_000,
        alias="MODEL_PRICE_OUTPUT",
        description="price of a million completion tokens",
    )
    model_rate: str = Field(
        "",
        pattern=_RATE,
        alias="ROWCALL_MODEL_RATE",
        description="calls of the model endpoint by all workers together, such as `600/min`; empty is no limit",
    )
    model_token_rate: str = Field(
        "",
        pattern=_RATE,
        alias="ROWCALL_MODEL_TOKEN_RATE",
        description="the same for tokens (prompt as estimated, and `max_tokens`), such as `90000/min`",
    )
    rate_wait_seconds: float = Field(
        10.0,
        ge=0,
        alias="ROWCALL_RATE_WAIT_SECONDS",
        description="longest wait of a run with its worker for the endpoint's turn; then it is given back unharmed",
    )
    model_response_format: Literal["auto", "json_schema", "json_object", "prompt"] = Field(
        "auto",
        alias="MODEL_RESPONSE_FORMAT",
        description="how JSON is asked for; `auto` steps down from json_schema as the endpoint refuses",
    )

    http_allow: tuple[str, ...] = Field(
        (),
        alias="ROWCALL_HTTP_ALLOW",
        description="hosts, addresses and CIDRs that agents may call although they are private; `.example.com` for all "
        "below it",
    )
    http_hosts: tuple[str, ...] = Field(
        (), alias="ROWCALL_HTTP_HOSTS", description="where it is given, agents may call these hosts and no others"
    )
    http_timeout_seconds: float = Field(
        30.0, gt=0, alias="ROWCALL_HTTP_TIMEOUT_SECONDS", description="deadline of one call of an agent, as a whole"
    )
    http_host_timeouts: dict[str, float] = Field(
        default_factory=dict,
        alias="ROWCALL_HTTP_HOST_TIMEOUTS",
        description="deadlines of single hosts, `host=seconds` separated by commas",
    )
    http_max_bytes: int = Field(
        4_194_304,
        gt=0,
        le=8_388_608,
        alias="ROWCALL_HTTP_MAX_BYTES",
        description="longest answer to a read of an agent; of an effect's answer 64 KiB are kept",
    )

    agents: tuple[str, ...] = Field(
        ("consumer.agents",),
        alias="ROWCALL_AGENTS",
        description="importable modules with an AGENTS list, separated by commas",
    )
    least_tiers: dict[str, Literal["low", "medium", "high"]] = Field(
        default_factory=dict,
        alias="ROWCALL_LEAST_TIERS",
        description="least tiers of agents' answers, `agent=medium` or `agent=high`, separated by commas",
    )
    auto_activate: bool = Field(
        True, alias="ROWCALL_AUTO_ACTIVATE", description="activate new agents when a worker starts"
    )
    schedules: str = Field(
        "", alias="ROWCALL_SCHEDULES", description="TOML file of schedules, beside those in the agents' modules"
    )
    drift: str = Field("", alias="ROWCALL_DRIFT", description="TOML file of drift monitors")
    drift_keep_days: int = Field(30, gt=0, alias="ROWCALL_DRIFT_KEEP_DAYS", description="days old drift records stay")
    watchdog: str = Field("", alias="ROWCALL_WATCHDOG", description="TOML file of the watchdog's channels")
    watchdog_ping_url: SecretStr | None = Field(
        None,
        alias="ROWCALL_WATCHDOG_PING_URL",
        description="URL that is asked for while the watchdog works, for a switch outside that rings when that stops",
    )
    watchdog_ping_seconds: float = Field(
        60.0, gt=0, alias="ROWCALL_WATCHDOG_PING_SECONDS", description="least pause between two such pings"
    )
    webhooks: str = Field("", alias="ROWCALL_WEBHOOKS", description="TOML file of webhook sources")
    webhook_host: str = Field("127.0.0.1", alias="ROWCALL_WEBHOOK_HOST", description="address of the webhook endpoint")
    webhook_port: int = Field(
        8090, ge=0, le=65535, alias="ROWCALL_WEBHOOK_PORT", description="port of the webhook endpoint; 0 picks one"
    )
    epoch: str = Field(
        "1",
        alias="ROWCALL_EPOCH",
        description="part of every event ID; raise it after a restore or a move to another cluster",
    )
    own_sources: tuple[str, ...] = Field(
        ("cdc",),
        alias="ROWCALL_OWN_SOURCES",
        description="topic prefixes of connectors that read this very database (own writes, attribution)",
    )
    outbox_slot: str = Field(
        "rowcall_outbox",
        alias="ROWCALL_OUTBOX_SLOT",
        description="replication slot of the outbox connector; /readyz waits for it, empty waits for none",
    )
    intake_batch: int = Field(2000, gt=0, alias="ROWCALL_INTAKE_BATCH", description="messages a transaction, at most")
    intake_linger_ms: int = Field(
        5, ge=0, alias="ROWCALL_INTAKE_LINGER_MS", description="how long a partly filled batch waits for more"
    )
    backlog_limit: int = Field(
        200_000, gt=0, alias="ROWCALL_BACKLOG_LIMIT", description="waiting jobs at which intake pauses its topics"
    )
    max_depth: int = Field(
        8,
        gt=0,
        alias="ROWCALL_MAX_DEPTH",
        description="runs that may cause one another in a row; deeper ones are parked",
    )
    root_runs_per_minute: int = Field(
        120,
        gt=0,
        le=1_000_000,
        alias="ROWCALL_ROOT_RUNS_PER_MINUTE",
        description="runs that one event may set off in a minute through other runs; more are parked",
    )
    dedup_days: int = Field(14, gt=0, alias="ROWCALL_DEDUP_DAYS", description="dedup horizon, above topic retention")

    lease_seconds: float = Field(30.0, gt=0, alias="ROWCALL_LEASE_SECONDS", description="lease of a claimed run")
    beat_seconds: float = Field(
        10.0, gt=0, alias="ROWCALL_BEAT_SECONDS", description="lease renewal; at most a third of the lease"
    )
    heartbeat_seconds: float = Field(
        10.0, gt=0, alias="ROWCALL_HEARTBEAT_SECONDS", description="pause between two heartbeats of a process"
    )
    run_deadline_seconds: float = Field(
        900.0, gt=0, alias="ROWCALL_RUN_DEADLINE_SECONDS", description="hard deadline of one attempt"
    )
    runs_in_flight: int = Field(
        256,
        gt=0,
        alias="ROWCALL_RUNS_IN_FLIGHT",
        description="runs a worker works on at once; as many again may be writing how they end",
    )
    drain_seconds: float = Field(
        25.0, ge=0, alias="ROWCALL_DRAIN_SECONDS", description="after SIGTERM: time for runs to finish before release"
    )
    poll_seconds: float = Field(
        2.0, gt=0, alias="ROWCALL_POLL_SECONDS", description="longest pause between two looks for work when idle"
    )
    retry_base_seconds: float = Field(
        2.0, gt=0, alias="ROWCALL_RETRY_BASE_SECONDS", description="first retry delay; doubles with each attempt"
    )
    retry_cap_seconds: float = Field(300.0, gt=0, alias="ROWCALL_RETRY_CAP_SECONDS", description="longest retry delay")

    review_expire_hours: float = Field(
        168.0,
        gt=0,
        alias="ROWCALL_REVIEW_EXPIRE_HOURS",
        description="how long a review waits for a decision before it is denied, unless its agent says otherwise",
    )
    review_escalate_hours: float = Field(
        24.0,
        gt=0,
        alias="ROWCALL_REVIEW_ESCALATE_HOURS",
        description="how long a review waits before it is escalated, unless its agent says otherwise",
    )

    watchdog_seconds: float = Field(
        1.0, gt=0, alias="ROWCALL_WATCHDOG_SECONDS", description="longest pause between two looks of the watchdog"
    )
    watchdog_grace_seconds: float = Field(
        30.0,
        ge=0,
        alias="ROWCALL_WATCHDOG_GRACE_SECONDS",
        description="how late anything may begin without being overdue",
    )
    watchdog_run_grace_seconds: float = Field(
        60.0,
        ge=0,
        alias="ROWCALL_WATCHDOG_RUN_GRACE_SECONDS",
        description="how long a run may lie after its lease ended",
    )
    watchdog_wait_seconds: float = Field(
        900.0,
        gt=0,
        alias="ROWCALL_WATCHDOG_WAIT_SECONDS",
        description="how long a run that is due may wait for a worker",
    )
    watchdog_stuck_seconds: float = Field(
        60.0, gt=0, alias="ROWCALL_WATCHDOG_STUCK_SECONDS", description="beats without progress for so long: stuck"
    )
    watchdog_misses: int = Field(
        3, ge=1, alias="ROWCALL_WATCHDOG_MISSES", description="beats a process may miss in a row before it is overdue"
    )
    watchdog_output_seconds: float = Field(
        300.0,
        ge=0,
        alias="ROWCALL_WATCHDOG_OUTPUT_SECONDS",
        description="when a run without output is told, after its end",
    )
    watchdog_gap_seconds: float = Field(
        10.0,
        gt=0,
        alias="ROWCALL_WATCHDOG_GAP_SECONDS",
        description="so long without a look: one gap instead of a storm",
    )
    watchdog_remind_seconds: float = Field(
        3600.0, ge=0, alias="ROWCALL_WATCHDOG_REMIND_SECONDS", description="when a fault is told again; 0 for never"
    )

    health_host: str = Field("127.0.0.1", alias="ROWCALL_HEALTH_HOST", description="address of /healthz, /metrics")
    health_port: int = Field(
        9100,
        ge=0,
        le=65535,
        alias="ROWCALL_HEALTH_PORT",
        description="port of /healthz, /readyz, /metrics; 0 picks one",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO", alias="ROWCALL_LOG_LEVEL", description="least severe level that is logged"
    )
    log_format: Literal["json", "text"] = Field("json", alias="ROWCALL_LOG_FORMAT", description="form of a log line")

    @field_validator("agents", "own_sources", "http_allow", "http_hosts", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("database_url")
    @classmethod
    def _check_database(cls, value: SecretStr) -> SecretStr:
        if wrong := database_url.fault(value.get_secret_value()):
            raise ValueError(wrong)
        return value

    @field_validator("kafka_options", "http_host_timeouts", "least_tiers", mode="before")
    @classmethod
    def _split_options(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if any(not separator for _, separator, _ in pairs):
            raise ValueError("write name=value, separated by commas")
        return {name.strip(): text.strip() for name, _, text in pairs}

    def check(self) -> None:
        """Compare settings that depend on each other.

        Raises:
            ConfigurationError: naming the two settings and the rule between them.
        """
        if self.beat_seconds * 3 > self.lease_seconds:
            raise ConfigurationError(
                f"ROWCALL_BEAT_SECONDS ({self.beat_seconds:g}) must be at most a third of "
                f"ROWCALL_LEASE_SECONDS ({self.lease_seconds:g}), or one late beat loses a healthy run"
            )
        if self.watchdog_gap_seconds < 2 * self.watchdog_seconds:
            raise ConfigurationError(
                f"ROWCALL_WATCHDOG_GAP_SECONDS ({self.watchdog_gap_seconds:g}) must be at least twice "
                f"ROWCALL_WATCHDOG_SECONDS ({self.watchdog_seconds:g}), or each pause is taken for a gap"
            )

    def shown(self) -> dict[str, str]:
        """Environment name → value in force, secrets masked, in the order of the class."""
        return {str(field.alias): _masked(getattr(self, name)) for name, field in type(self).model_fields.items()}

    def database_shown(self) -> str:
        """DATABASE_URL with its passwords masked and the rest as it is."""
        return database_url.shown(self.database_url.get_secret_value())

    def secrets(self) -> set[str]:
        """Every secret in the settings, in each form in which it may be met."""
        found = {text for name, text in self.kafka_options.items() if _SECRET_NAME.search(name)}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr) and name != "database_url":
                found.add(value.get_secret_value())
        return (found | database_url.passwords(self.database_url.get_secret_value())) - {""}


def _masked(value: object) -> str:
    if isinstance(value, SecretStr):
        return MASK if value.get_secret_value() else ""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return ",".join(f"{name}={MASK if _SECRET_NAME.search(name) else text}" for name, text in value.items())
    return "" if value is None else str(value)
