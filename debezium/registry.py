"""Apicurio Registry, storing in a database of its own in the stack's Postgres, so schemas survive a restart.

Started once Postgres is ready. Its Confluent-compatible interface, which consumers use, lies under
`/apis/ccompat/v7`; the Avro converter in Connect uses `/apis/registry/v2`.
"""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict

from debezium import java, postgres, probes
from debezium.errors import StackError
from debezium.ports import HOST
from debezium.processes import Launch
from debezium.service import TERMINATE, Scene


class Registry:
    """The schema registry."""

    name = "registry"
    port_names = ("main", "management")
    needs = ("postgres",)
    stop_steps = TERMINATE

    def fetch(self, scene: Scene) -> None:
        """Get the registry's archive and unpack it."""
        scene.cache.registry()

    def prepare(self, scene: Scene) -> None:
        """Make its database in a Postgres that is not the stack's own; ours has it already.

        Raises:
            StackError: that Postgres does not let us.
        """
        scene.paths.service("registry").mkdir(parents=True, exist_ok=True)
        if "DATABASE_URL" not in scene.external:
            return
        try:
            with psycopg.connect(scene.database_url, connect_timeout=10, autocommit=True) as connection:
                postgres.create_database(connection, postgres.REGISTRY_DATABASE)
        except psycopg.Error as error:
            raise StackError(
                f"the schema registry needs a database {postgres.REGISTRY_DATABASE!r} beside the one of DATABASE_URL "
                f"and it cannot be made ({error}); create it, or set SCHEMA_REGISTRY_URL"
            ) from error

    def launch(self, scene: Scene) -> Launch:
        """The registry's runner, configured by its environment."""
        flags = ["-jar", str(scene.cache.registry() / "quarkus-run.jar")]
        argv = java.command(scene.settings.registry_heap_mb, flags, ["-XX:TieredStopAtLevel=1"])
        return Launch(argv, environment(scene), scene.paths.service("registry"))

    def ready(self, scene: Scene) -> bool:
        """Whether the interface that consumers use answers, which needs the database."""
        return probes.answers(scene.port("registry"), "/apis/ccompat/v7/subjects")


def environment(scene: Scene) -> dict[str, str]:
    """The registry's settings."""
    database = conninfo_to_dict(scene.database_url)
    server = f"{database['host']}:{database.get('port') or 5432}"
    return {
        "QUARKUS_HTTP_HOST": HOST,
        "QUARKUS_HTTP_PORT": str(scene.port("registry")),
        "QUARKUS_MANAGEMENT_HOST": HOST,
        "QUARKUS_MANAGEMENT_PORT": str(scene.port("registry", "management")),
        "APICURIO_STORAGE_KIND": "sql",
        "APICURIO_STORAGE_SQL_KIND": "postgresql",
        "APICURIO_DATASOURCE_URL": f"jdbc:postgresql://{server}/{postgres.REGISTRY_DATABASE}",
        # By default it opens twenty sessions at once and keeps them.
        "APICURIO_DATASOURCE_JDBC_INITIAL_SIZE": "1",
        "APICURIO_DATASOURCE_JDBC_MIN_SIZE": "1",
        "APICURIO_DATASOURCE_JDBC_MAX_SIZE": "10",
        # A session that died with a restarted Postgres answers 500 once, and one 500 ends a row connector's task.
        "QUARKUS_DATASOURCE_POSTGRESQL_JDBC_VALIDATE_ON_BORROW": "true",
        "QUARKUS_DATASOURCE_POSTGRESQL_JDBC_VALIDATION_QUERY_SQL": "SELECT 1",
        "APICURIO_DATASOURCE_USERNAME": str(database.get("user") or "postgres"),
        "APICURIO_DATASOURCE_PASSWORD": str(database.get("password") or ""),
    }
