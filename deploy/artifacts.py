"""Fetches what the images need beyond Python packages: `python deploy/artifacts.py plugins|weights OUT`.

Run in the build stages of the Dockerfile with the packages of deploy/locks/dev.txt. Everything comes through
debezium/lock.json, so each file is accepted only with its SHA-256. `plugins` writes the plug-in path of Kafka Connect:
Debezium, the Avro converter, and the transform that keeps NULL, compiled from debezium/transform.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from debezium.cache import Cache
from debezium.connect import plugin_folder
from debezium.paths import StackPaths, cache_directory
from debezium.reporting import Reporter
from debezium.service import Scene, StackSettings


def plugins(cache: Cache, out: Path) -> None:
    """The very folder that the local stack's Connect gets; its hard links become files."""
    scene = Scene(StackPaths.of(out, None), StackSettings(), cache, None, {})
    shutil.copytree(plugin_folder(scene), out)


def weights(cache: Cache, out: Path) -> None:
    """The tiny model's weights, as tiny.gguf."""
    out.mkdir(parents=True)
    shutil.copyfile(cache.weights(), out / "tiny.gguf")


def main(what: str, out: str) -> None:
    """Fetch one of them into a folder that does not exist yet."""
    cache = Cache(cache_directory(), Reporter())
    {"plugins": plugins, "weights": weights}[what](cache, Path(out))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
