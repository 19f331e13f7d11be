"""Builds the Connect transform that keeps NULL apart from a column's default, from source.

Runs after `debezium.cache` has the compiler and Connect's jars, and before Connect starts; the embedded Java has no
javac, so Eclipse's compiler does it. Writes one jar into the cache, under a name that changes with the source and the
compiler.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from pathlib import Path

from debezium import java
from debezium.cache import Cache
from debezium.errors import StackError

SOURCES = Path(__file__).parent
JAR_NAME = "rowcall-connect.jar"
# The oldest Java that Kafka Connect 4 runs on: the jar also serves a Connect that is not ours.
TARGET_JAVA = "17"
# By this file Connect finds the transform without looking into every class.
SERVICE = "META-INF/services/org.apache.kafka.connect.transforms.Transformation"
TRANSFORMS = "io.rowcall.connect.KeepNull\n"


def built(cache: Cache) -> Path:
    """The folder that holds the transform's jar, built at the first call.

    Raises:
        StackError: the source does not compile.
        CacheError: the compiler or Connect's jars could not be fetched.
    """
    compiler, libraries = cache.jars("compiler"), cache.jars("kafka")
    digest = hashlib.sha256("\n".join([compiler.name, libraries.name, TRANSFORMS]).encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return cache.complete(
        f"transform-{digest.hexdigest()[:12]}", lambda folder: _build(folder / JAR_NAME, compiler, libraries)
    )


def _sources() -> list[Path]:
    return sorted(SOURCES.rglob("*.java"))


def _build(jar: Path, compiler: Path, libraries: Path) -> None:
    classes = jar.parent / "classes"
    command = [str(java.executable()), "-cp", java.class_path(compiler), "org.eclipse.jdt.internal.compiler.batch.Main"]
    command += ["-source", TARGET_JAVA, "-target", TARGET_JAVA, "-proc:none", "-nowarn"]
    command += ["-classpath", java.class_path(libraries), "-d", str(classes), *(str(source) for source in _sources())]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode != 0:
        raise StackError(f"the Connect transform does not compile:\n{outcome.stdout}{outcome.stderr}")
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for compiled in sorted(classes.rglob("*.class")):
            archive.write(compiled, compiled.relative_to(classes))
        archive.writestr(SERVICE, TRANSFORMS)
    shutil.rmtree(classes)
