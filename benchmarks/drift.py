"""The figures of drift: goldens, car loan, false alarms, delays, order of levels, updates a second, time to the event.

The car-loan data come from NannyML's wheel, fetched through the configured package index into the cache and checked by
its digest; nothing of it is kept in the repository. California housing, from the same wheel, was not looked at while
the defaults were chosen. A detector that always fires and one that never does are scored beside ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import statistics
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from confluent_kafka import Producer

from benchmarks.figures import Measured, NotMeasured, percentile, summary
from benchmarks.services import Child, Services, rowcall, running, until
from consumer import db
from consumer.kafka import Brokers, Place, read_topic
from consumer.settings import load
from debezium.paths import cache_directory
from producers.drift import check, store
from producers.drift.adwin import Adwin
from producers.drift.engine import Engine, Sample
from producers.drift.monitors import Monitor, Topics

LOCK: Final = Path(__file__).with_name("drift-data.lock")
DRIFTING: Final = ("car_value", "salary_range", "loan_length", "repaid_loan_on_prev_car", "y_pred_proba")
CLEAN: Final = ("debt_to_income_ratio", "driver_tenure", "size_of_downpayment")
HOUSING: Final = ("MedInc", "HouseAge", "AveRooms", "AveOccup", "Population")
REFERENCE_ROWS: Final = 50_000
DRIFT_ROW: Final = 25_000


def measure(services: Services) -> Measured:
    """All of it; `--quick` leaves most seeds out."""
    seeds = 10 if services.quick else 200
    figures: dict[str, float] = {"drift_goldens_equal": _goldens()}
    raw: dict[str, Any] = {}
    loan, raw["car_loan"] = _car_loan()
    figures |= loan
    figures["drift_false_alarms_per_5000"] = _false_alarms(seeds)
    for shift in (1, 3):
        figures[f"drift_delay_p50_{shift}sigma"] = _delay(seeds, shift)
    figures["drift_warning_after_critical"] = float(sum(_ramp(seed) for seed in range(seeds)))
    with services.database() as url:
        figures["drift_updates_per_s"], raw["updates"] = _updates(url, 2 if services.quick else 10)
    figures["drift_event_ms_p99"], raw["event_ms"] = _event_ms(services, 3 if services.quick else 30)
    return Measured(figures, raw)


def _goldens() -> float:
    chance = random.Random(12345)
    stream = chance.choices([0, 1], k=1000) + chance.choices(range(4, 8), k=1000)
    window, found = Adwin(0.002, 32), []
    for place, value in enumerate(stream):
        if window.update(value):
            found.append(place)
            window = Adwin(0.002, 32)
        window = Adwin.load(orjson.loads(orjson.dumps(window.dump())), 0.002, 32)
    return float(found == [1023])


def _wheel() -> Path:
    name, digest = LOCK.read_text().split()
    folder = cache_directory() / "bench-data"
    version = name.split("-")[1]
    if not (folder / name).exists():
        command = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.11",
                   "--dest", str(folder), f"nannyml=={version}"]  # fmt: skip
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise NotMeasured(f"the car-loan data cannot be fetched: {done.stderr.strip()[-300:]}")
    if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
        raise NotMeasured(f"{name} is not the file that drift-data.lock names")
    return folder / name


def _rows(wheel: Path, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in names:
            with archive.open(f"nannyml/datasets/data/{name}.csv") as file:
                yield from check.of_lines(io.TextIOWrapper(file, "utf-8", newline=""))


def _fired(wheel: Path, names: Sequence[str], columns: Sequence[str]) -> dict[str, list[tuple[int, str]]]:
    monitors = [Monitor.of(name=column.lower(), topic="t", value=column) for column in columns]
    told, _ = check.replay(monitors, _rows(wheel, names))
    return {
        column: [(item["row"], item["level"]) for item in told
                 if item["monitor"] == column.lower() and item["turn"] == "raised"]
        for column in columns
    }  # fmt: skip


def _car_loan() -> tuple[dict[str, float], dict[str, Any]]:
    wheel = _wheel()
    fired = _fired(wheel, ["synthetic_car_loan_reference", "synthetic_car_loan_analysis"], (*DRIFTING, *CLEAN))
    starts = REFERENCE_ROWS + DRIFT_ROW
    delays = {name: next((row - starts for row, _ in fired[name] if row > starts), None) for name in DRIFTING}
    early = sum(row <= starts for name in DRIFTING for row, _ in fired[name])
    false = sum(len(fired[name]) for name in CLEAN) + early
    housing = _fired(wheel, ["california_housing_reference", "california_housing_analysis"], HOUSING)
    figures = {
        "car_loan_columns_found": float(sum(delay is not None for delay in delays.values())),
        "car_loan_columns_within_3000": float(sum(delay is not None and delay <= 3000 for delay in delays.values())),
        "car_loan_false_alarms": float(false),
    }
    always = {"found": 5, "false_alarms": "one in every row before the drift and in every clean column"}
    raw = {"delays": delays, "always_fires": always, "never_fires": {"found": 0, "false_alarms": 0},
           "california_housing_not_tuned_on": housing}  # fmt: skip
    print(f"car loan: {delays}, false alarms {false}; an always-firing detector: {always}; a never-firing one: found 0")
    return figures, raw


def _mean(seed: int) -> tuple[Monitor, Engine, random.Random]:
    monitor = Monitor.of(name="m", topic="t", value="v")
    return monitor, Engine([monitor], lambda keys: {}, {}), random.Random(seed)


def _feed(monitor: Monitor, engine: Engine, value: float, at: int) -> list[tuple[int, str]]:
    before = len(engine.told)
    engine.feed([monitor], [Sample({"v": value}, float(at), float(at))])
    return [(told.turn.level, told.turn.turn) for told in engine.told[before:]]


def _false_alarms(seeds: int) -> float:
    raised = 0
    for seed in range(seeds):
        monitor, engine, chance = _mean(seed)
        for at in range(monitor.learn + 5000):
            raised += sum(turn == "raised" for _, turn in _feed(monitor, engine, chance.gauss(0, 1), at))
    return raised / seeds


def _delay(seeds: int, shift: float) -> float:
    delays = []
    for seed in range(1000, 1000 + seeds):
        monitor, engine, chance = _mean(seed)
        for at in range(monitor.learn + 1000):
            _feed(monitor, engine, chance.gauss(0, 1), at)
        engine.told.clear()
        delays.append(
            next((n for n in range(1, 3000) if _feed(monitor, engine, chance.gauss(shift, 1), 2000 + n)), 3000)
        )
    return float(statistics.median(delays))


def _ramp(seed: int) -> int:
    """1 where a critical event came before its warning."""
    monitor, engine, chance = _mean(5000 + seed)
    for at in range(monitor.learn + 500):
        _feed(monitor, engine, chance.gauss(0, 1), at)
    engine.told.clear()
    for at in range(2000):
        _feed(monitor, engine, chance.gauss(at / 1000, 1), 2000 + at)
    levels = [told.turn.level for told in engine.told if told.turn.turn == "raised"]
    return int(2 in levels and 1 not in levels[: levels.index(2)])


def _updates(url: str, batches: int) -> tuple[float, dict[str, Any]]:
    monitor = Monitor.of(name="m", topic="t", value="v", segment="s", learn=20)
    chance = random.Random(1)
    rates = []
    with contextlib.closing(db.connect(url, name="bench")) as session:
        engine = Engine([monitor], store.loader(session), {})
        for batch in range(batches + 3):
            samples = [Sample({"v": chance.gauss(0, 1), "s": f"s{chance.randrange(10_000)}"}, batch, batch)
                       for _ in range(20_000 if batch > 2 else 100_000)]  # fmt: skip
            began = time.perf_counter()
            engine.feed([monitor], samples)
            position = store.Position("topic:t", "id", 0, batch + 1)
            store.save(session, engine, Topics(), 1.0, cluster="c", positions=[position])
            # The first three fill the segments and their baselines.
            if batch > 2:
                rates.append(len(samples) / (time.perf_counter() - began))
    return statistics.median(rates), {"segments": 10_000, "per_s": [round(rate) for rate in rates]}


def _event_ms(services: Services, times: int) -> tuple[float, dict[str, Any]]:
    info = services.connected()
    mark = uuid.uuid4().hex[:8]
    topic, told = f"bench-{mark}", f"bench-w-{mark}"
    file = services.directory / "drift.toml"
    file.write_text(
        f"[topics]\nwarning_topic = '{told}'\ncritical_topic = 'bench-c-{mark}'\nbacklog_topic = 'bench-b-{mark}'\n"
        f"[monitor.bench]\ntopic = '{topic}'\nvalue = 'v'\nsegment = 's'\ndetector = 'threshold'\nwarning = 10\n"
        "critical = 1000\nstart = 'earliest'\n"
    )
    settings = load({"KAFKA_BOOTSTRAP_SERVERS": info.kafka_bootstrap_servers})
    producer = Producer({"bootstrap.servers": info.kafka_bootstrap_servers})

    def send(segment: str, value: float) -> None:
        body = orjson.dumps({"v": value, "s": segment})
        producer.produce(topic, body, headers={"id": str(uuid.uuid4())})
        producer.flush(10)

    environment = {**info.environment(), "ROWCALL_DRIFT": str(file), "ROWCALL_HEALTH_PORT": "0"}
    brokers = Brokers(settings)

    def arrived() -> int:
        found = brokers.topics([told])
        return sum(brokers.ends(Place(told, n) for item in found.values() for n in item.partitions).values())

    send("warm", 99.0)
    with running([Child(rowcall("drift", "run"), environment, services.directory / "drift.log")]):
        until(lambda: arrived() >= 1, "the first event", seconds=60)
        for number in range(times):
            send(f"s{number}", 99.0)
            time.sleep(0.2)
        until(lambda: arrived() >= times + 1, "all events", seconds=60)
    # By the brokers' clock: when the value's message and when the event's message were appended or made.
    values = {orjson.loads(record.value or b"{}")["s"]: record.timestamp_ms for record in read_topic(settings, topic)}
    events = {(record.key or b"").decode().partition(":")[2]: record.timestamp_ms
              for record in read_topic(settings, told)}  # fmt: skip
    spans = [float((events[s] or 0) - (at or 0)) for s, at in values.items() if s != "warm"]
    return percentile(spans, 0.99), summary(spans)
