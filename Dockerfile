# syntax=docker/dockerfile:1
# Targets: worker (the default: the consumer group), connect (Kafka Connect with all it needs), model (the tiny model).
# Nothing is installed that the lock files do not name with its hash.

ARG PYTHON=3.11.14-slim-bookworm

# Rowcall and its dependencies in a virtual environment of their own.
FROM python:${PYTHON} AS build
WORKDIR /src
COPY deploy/locked.awk deploy/locked.awk
COPY deploy/locks/runtime.txt deploy/locks/dev.txt deploy/locks/
RUN python -m venv /opt/rowcall \
    && /opt/rowcall/bin/pip install --no-cache-dir --require-hashes -r deploy/locks/runtime.txt \
    && awk -v names=setuptools -f deploy/locked.awk deploy/locks/dev.txt > /tmp/build.txt \
    && pip install --no-cache-dir --require-hashes --no-deps -r /tmp/build.txt
COPY pyproject.toml README.md LICENSE ./
COPY consumer consumer
COPY producers producers
COPY debezium debezium
COPY schemas schemas
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /tmp/wheels . \
    && /opt/rowcall/bin/pip install --no-cache-dir --no-deps --no-index /tmp/wheels/rowcall-*.whl

# Connect's plug-ins and the model's weights, each file checked against debezium/lock.json.
FROM python:${PYTHON} AS artifacts
WORKDIR /src
COPY deploy/locks/dev.txt deploy/locks/dev.txt
RUN pip install --no-cache-dir --require-hashes -r deploy/locks/dev.txt
COPY debezium debezium
COPY deploy/artifacts.py deploy/artifacts.py
ENV PYTHONPATH=/src ROWCALL_CACHE=/tmp/cache
RUN python deploy/artifacts.py plugins /out/plugins

FROM artifacts AS weights
RUN python deploy/artifacts.py weights /out/weights

FROM apache/kafka:4.3.1 AS connect
COPY --from=artifacts /out/plugins /opt/rowcall/plugins
COPY deploy/connect/connect.properties /etc/rowcall/connect.properties
# appuser of the base image
USER 1000
# Debezium writes infinite dates by the JVM's time zone; the decoder knows them in UTC.
ENV KAFKA_HEAP_OPTS="-Xms128m -Xmx768m" KAFKA_OPTS="-Duser.timezone=UTC"
EXPOSE 8083
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
    CMD ["wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8083/health"]
ENTRYPOINT ["/opt/kafka/bin/connect-distributed.sh"]
CMD ["/etc/rowcall/connect.properties"]

FROM python:${PYTHON} AS model
WORKDIR /src
COPY deploy/locked.awk deploy/locked.awk
COPY deploy/locks/dev.txt deploy/locks/dev.txt
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && awk -v names=xllamacpp -f deploy/locked.awk deploy/locks/dev.txt > /tmp/model.txt \
    && pip install --no-cache-dir --require-hashes --no-deps -r /tmp/model.txt \
    && useradd --system --uid 10001 --no-create-home rowcall
COPY debezium/__init__.py debezium/ports.py debezium/model_server.py debezium/
COPY --from=weights /out/weights /opt/model
USER 10001
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["python", "-m", "debezium.model_server"]
CMD ["/opt/model/tiny.gguf", "8080", "rowcall-tiny", "0.0.0.0"]

FROM python:${PYTHON} AS worker
RUN useradd --system --uid 10001 --no-create-home rowcall
COPY --from=build /opt/rowcall /opt/rowcall
USER 10001
ENV PATH=/opt/rowcall/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ROWCALL_HEALTH_HOST=0.0.0.0 \
    ROWCALL_HEALTH_PORT=9100
EXPOSE 9100
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9100/healthz', timeout=4)"]
ENTRYPOINT ["rowcall"]
CMD ["worker"]
