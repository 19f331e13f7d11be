"""The tiny real model, on request: llama.cpp's OpenAI-compatible server over SmolLM2-135M-Instruct.

It proves the path from an agent to a model over HTTP and back; its judgement is that of a model of 135 million
parameters. Any other endpoint replaces it through `MODEL_BASE_URL`. Depends on no other service.
"""

from __future__ import annotations

import importlib.util
import sys

from debezium import probes
from debezium.errors import MissingPackage
from debezium.processes import Launch, import_path
from debezium.service import TERMINATE, Scene

MODEL_NAME = "smollm2-135m-instruct"
# The server asks for no key; clients that insist on sending one send this.
MODEL_API_KEY = "local"


class Model:
    """The model's server."""

    name = "model"
    port_names = ("main",)
    needs: tuple[str, ...] = ()
    stop_steps = TERMINATE

    def fetch(self, scene: Scene) -> None:
        """Get the weights. Raises MissingPackage without xllamacpp."""
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingPackage("xllamacpp")
        scene.cache.weights()

    def prepare(self, scene: Scene) -> None:
        """Make its folder."""
        scene.paths.service("model").mkdir(parents=True, exist_ok=True)

    def launch(self, scene: Scene) -> Launch:
        """The server in a Python process of its own."""
        argv = [sys.executable, "-m", "debezium.model_server", str(scene.cache.weights()), str(scene.port("model"))]
        return Launch([*argv, MODEL_NAME], import_path(), scene.paths.service("model"))

    def ready(self, scene: Scene) -> bool:
        """Whether the weights are loaded."""
        return probes.answers(scene.port("model"), "/health")
