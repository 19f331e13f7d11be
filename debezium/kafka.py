"""Kafka 4, one node that is broker and controller (KRaft), formatted at its first start.

Started beside Postgres, before Connect. Its log folder holds all topics; a restart keeps them and their ids.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path

from debezium import java, probes
from debezium.errors import StackError
from debezium.ports import HOST
from debezium.processes import Launch
from debezium.service import TERMINATE, Scene, write_properties

LOGGING = Path(__file__).with_name("log4j2.properties")
STORAGE_TOOL = "kafka.tools.StorageTool"


class Kafka:
    """The broker."""

    name = "kafka"
    port_names = ("main", "controller")
    needs: tuple[str, ...] = ()
    stop_steps = TERMINATE

    def fetch(self, scene: Scene) -> None:
        """Get Kafka's jars."""
        scene.cache.jars("kafka")

    def prepare(self, scene: Scene) -> None:
        """Write the broker's properties and format its storage once."""
        write_properties(_properties_path(scene), properties(scene))
        if not (_data(scene) / "meta.properties").exists():
            _format(scene)

    def launch(self, scene: Scene) -> Launch:
        """The broker on its properties file."""
        flags = [f"-Dlog4j2.configurationFile={LOGGING}", "-cp", java.class_path(scene.cache.jars("kafka"))]
        arguments = ["kafka.Kafka", str(_properties_path(scene))]
        return Launch(java.command(scene.settings.kafka_heap_mb, arguments, flags), {}, scene.paths.service("kafka"))

    def ready(self, scene: Scene) -> bool:
        """Whether it accepts clients: the listener opens when the broker has joined its cluster."""
        return probes.listens(scene.port("kafka"))


def properties(scene: Scene) -> Mapping[str, str]:
    """The broker's properties: one node, so every replication factor is 1."""
    client, controller = scene.port("kafka"), scene.port("kafka", "controller")
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{client}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(_data(scene)),
        "num.partitions": str(scene.settings.partitions),
        "offsets.topic.num.partitions": "5",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "5",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "true",
        "log.retention.hours": "168",
        "message.max.bytes": "10485760",
        **scene.settings.kafka,
    }


def _data(scene: Scene) -> Path:
    return scene.paths.service("kafka") / "data"


def _properties_path(scene: Scene) -> Path:
    return scene.paths.service("kafka") / "server.properties"


def _format(scene: Scene) -> None:
    cluster = base64.urlsafe_b64encode(b"\x00" + secrets.token_bytes(15)).decode().rstrip("=")
    arguments = [STORAGE_TOOL, "format", "--cluster-id", cluster, "--config", str(_properties_path(scene))]
    flags = ["-XX:TieredStopAtLevel=1", "-cp", java.class_path(scene.cache.jars("kafka"))]
    command = java.command(128, arguments, flags)
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise StackError(f"Kafka's storage cannot be formatted:\n{outcome.stdout}{outcome.stderr}")
