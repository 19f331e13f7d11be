"""Kafka Connect with Debezium, the Avro converter and the transform that keeps NULL.

Started once Kafka is ready. Connectors are not its business here: `rowcall connectors apply` puts the files of
`debezium/connectors` to its REST interface, and the worker keeps them in a topic, so they come back after a restart.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from debezium import java, probes, transform
from debezium.ports import HOST
from debezium.processes import Launch
from debezium.service import TERMINATE, Scene, write_properties

# The converter's own jar lacks the service file by which Connect finds a plugin quickly.
CONVERTER_SERVICE = "META-INF/services/org.apache.kafka.connect.storage.Converter"
CONVERTERS = "io.apicurio.registry.utils.converter.AvroConverter\n"
LOGGING = Path(__file__).with_name("log4j2.properties")


class Connect:
    """The Connect worker."""

    name = "connect"
    port_names = ("main",)
    needs = ("kafka",)
    stop_steps = TERMINATE

    def fetch(self, scene: Scene) -> None:
        """Get the jars of the worker, the connector and the converter, and build the transform."""
        scene.cache.jars("kafka")
        plugin_folder(scene)

    def prepare(self, scene: Scene) -> None:
        """Write the worker's properties."""
        write_properties(_properties_path(scene), properties(scene))

    def launch(self, scene: Scene) -> Launch:
        """The worker in distributed mode, the only one whose REST interface and storage survive a restart."""
        flags = [f"-Dlog4j2.configurationFile={LOGGING}", "-cp", java.class_path(scene.cache.jars("kafka"))]
        arguments = ["org.apache.kafka.connect.cli.ConnectDistributed", str(_properties_path(scene))]
        folder = scene.paths.service("connect")
        return Launch(java.command(scene.settings.connect_heap_mb, arguments, flags), {}, folder)

    def ready(self, scene: Scene) -> bool:
        """Whether the worker has read its topics and serves its REST interface."""
        return probes.answers(scene.port("connect"), "/health")


def properties(scene: Scene) -> Mapping[str, str]:
    """The worker's properties. Each connector names its own converters; these are the defaults."""
    return {
        "bootstrap.servers": scene.kafka_bootstrap_servers,
        "group.id": "rowcall-connect",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "config.storage.topic": "_connect_configs",
        "offset.storage.topic": "_connect_offsets",
        "status.storage.topic": "_connect_status",
        "config.storage.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "offset.storage.partitions": "1",
        "status.storage.partitions": "1",
        # How much is sent again after a kill: one second's records instead of a minute's.
        "offset.flush.interval.ms": "1000",
        # A worker that was killed counts as a member for this long, and its connectors stand still meanwhile.
        "session.timeout.ms": "10000",
        "heartbeat.interval.ms": "3000",
        "scheduled.rebalance.max.delay.ms": "0",
        "plugin.path": str(plugin_folder(scene)),
        # Every plugin has a service file (see CONVERTERS), so Connect need not look into every class of every jar,
        # which took 7 of its 13 seconds to start and doubled its memory.
        "plugin.discovery": "service_load",
        "listeners": f"http://{HOST}:{scene.port('connect')}",
        "rest.advertised.host.name": HOST,
        "rest.advertised.port": str(scene.port("connect")),
        **scene.settings.connect,
    }


def plugin_folder(scene: Scene) -> Path:
    """The folder with one sub-folder a plugin: Connect gives each its own class loader."""
    sources = {
        "debezium": scene.cache.jars("debezium"),
        "apicurio": scene.cache.jars("converter"),
        "rowcall": transform.built(scene.cache),
    }

    def fill(folder: Path) -> None:
        for name, source in sources.items():
            (folder / name).mkdir()
            for jar in source.glob("*.jar"):
                os.link(jar, folder / name / jar.name)
        with zipfile.ZipFile(folder / "apicurio" / "rowcall-services.jar", "w") as archive:
            archive.writestr(CONVERTER_SERVICE, CONVERTERS)

    digest = hashlib.sha256("\n".join([*(source.name for source in sources.values()), CONVERTERS]).encode())
    return scene.cache.complete(f"plugins-{digest.hexdigest()[:12]}", fill)


def _properties_path(scene: Scene) -> Path:
    return scene.paths.service("connect") / "connect.properties"
