"""Images with Debian's buildah: build, look into, run. Everything is kept in .cache/image-test.

The stand-in for vLLM's image is a small Debian with Python 3.11 and what vLLM needs on a CPU, taken
from .venv; it has no compiler, and nothing that only RunPod's SDK needs.
"""

import contextlib
import ctypes
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import openai
import psutil

import local_endpoint
from local_endpoint import Knobs, LocalEndpoint

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "builder"))

import sdk_only  # noqa: E402

CACHE = ROOT / ".cache/image-test"
CONTEXT = ROOT
STORE = [f"--root={CACHE / 'store'}", f"--runroot={CACHE / 'run'}", "--storage-driver=overlay"]
DEBIAN = "bookworm"  # its Python is 3.11, as that of .venv
PACKAGES = "python3,python3-pip,ca-certificates,libgomp1,libnuma1"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_S = 600.0  # as long as a busy machine may take; alone it is half a minute
JOB_S = 300.0
BUILD = ("--isolation=chroot", "--layers", "--force-rm", "--pull=false")
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def buildah(command: str, *arguments: str) -> str:
    """Run buildah and return what it prints. Raises CalledProcessError, with its errors shown."""
    done = subprocess.run(
        ["buildah", *STORE, command, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def exists(image: str) -> bool:
    found = subprocess.run(
        ["buildah", *STORE, "inspect", "--type=image", image], capture_output=True, check=False
    )
    return found.returncode == 0


def base() -> str:
    """Return the stand-in for vLLM's image, made anew when its packages have changed."""
    versions = [f"{name}=={metadata.version(name)}" for name in _packages()]
    key = hashlib.sha256(f"{DEBIAN} {PACKAGES} {versions}".encode()).hexdigest()[:12]
    image = f"localhost/vllm-stand-in:{key}"
    if exists(image):
        return image
    buildah("rmi", "--all", "--force")  # what was built on an older one is of no use either
    CACHE.mkdir(parents=True, exist_ok=True)
    rootfs = CACHE / f"debian-{DEBIAN}"
    if not rootfs.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _debootstrap(Path(folder) / "rootfs")
            (Path(folder) / "rootfs").rename(rootfs)
    container = buildah("from", "scratch")
    mount = Path(buildah("mount", container))
    subprocess.run(["cp", "-a", f"{rootfs}/.", str(mount)], check=True)
    copy_packages(mount / "usr/local/lib/python3.11/dist-packages")
    _copy_pip_settings(mount)
    # As vLLM's image has it, so that ours must replace it.
    entrypoint = '--entrypoint=["vllm", "serve"]'
    buildah("config", entrypoint, f"--env=PATH={PATH}", container)
    buildah("commit", "--quiet", "--rm", container, image)
    return image


def _packages() -> list[str]:
    return sorted(sdk_only.needed(sdk_only.BASE))


def _debootstrap(folder: Path) -> None:
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, str(folder)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(folder / "var/cache/apt/archives")


def copy_packages(target: Path) -> None:
    """Copy vLLM and all that it needs out of .venv."""
    target.mkdir(parents=True, exist_ok=True)
    for name in _packages():
        distribution = metadata.distribution(name)
        site = Path(str(distribution.locate_file("")))
        for file in distribution.files or ():
            source = (site / file).resolve()
            if site in source.parents and source.suffix != ".pyc" and source.exists():
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target / file)


def _copy_pip_settings(mount: Path) -> None:
    """Let pip in the image reach what pip reaches here: mirrors and their certificates."""
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        shutil.copy2(certificates, mount / str(certificates).lstrip("/"))
    for settings in (Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf")):
        if settings.exists():
            shutil.copy2(settings, mount / "etc/pip.conf")
            return


def build(image: str, arguments: Mapping[str, str], secrets: Mapping[str, Path]) -> str:
    """Build the project's Dockerfile on the stand-in and return what was printed."""
    done = subprocess.run(
        [
            *("buildah", *STORE, "bud", *BUILD),
            f"--build-arg=BASE_IMAGE={base()}",
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *(f"--secret=id={name},src={path}" for name, path in secrets.items()),
            *(f"--tag={image}", str(CONTEXT)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{image} was not built:\n{done.stdout[-6000:]}")
    return done.stdout


@dataclass(frozen=True)
class Layer:
    """One layer as a registry would get it: its compressed size, and the tar in it."""

    file: Path

    @property
    def size_mb(self) -> float:
        return self.file.stat().st_size / 1e6

    def contains(self, word: bytes) -> bool:
        """Say whether the word is anywhere in the uncompressed layer, names included."""
        kept = b""
        with gzip.open(self.file) as tar:
            while piece := tar.read(2**22):
                if word in kept + piece:
                    return True
                kept = piece[-len(word) :]
        return False


@dataclass(frozen=True)
class Pushed:
    """An image as a registry would get it: its configuration with the history, its layers."""

    config: str
    layers: tuple[Layer, ...]


def push(image: str, folder: Path) -> Pushed:
    """Write an image the way it is pushed, into a folder."""
    buildah("push", "--quiet", "--format=oci", image, f"oci:{folder}:image")
    blobs = folder / "blobs/sha256"
    index = json.loads((folder / "index.json").read_text())
    manifest = json.loads((blobs / _digest(index["manifests"][0])).read_text())
    layers = tuple(Layer(blobs / _digest(layer)) for layer in manifest["layers"])
    return Pushed((blobs / _digest(manifest["config"])).read_text(), layers)


def config(image: str) -> dict[str, Any]:
    """Return what the image says of itself: its entry point, its environment, its labels."""
    inspected = json.loads(buildah("inspect", "--type=image", image))
    return dict(inspected["OCIv1"]["config"])


def _digest(descriptor: Mapping[str, str]) -> str:
    return descriptor["digest"].removeprefix("sha256:")


@dataclass(frozen=True)
class Served:
    """A worker in a container that takes jobs, and the official client of its endpoint."""

    endpoint: LocalEndpoint
    client: openai.OpenAI
    process: subprocess.Popen[bytes]
    log_file: Path

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


@contextlib.contextmanager
def serve(image: str, environ: Mapping[str, str], user: str, volume: str = "") -> Iterator[Served]:
    """Start the image's own entry point as this user, and wait until it takes jobs.

    Of the environment it gets what RunPod would set, and no more.
    Raises RuntimeError with the end of its log when it dies or is late.
    """
    container = buildah("from", "--pull=false", image)
    with (
        local_endpoint.serve(Knobs()) as endpoint,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(buildah, "rm", container)
        ours = endpoint.worker_environ("worker-1", "/")
        given = {name: ours[name] for name in ours if name.startswith("RUNPOD_")} | dict(environ)
        log_file = Path(folder) / "worker.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [
                    *("buildah", *STORE, "run", "--isolation=chroot", f"--user={user}"),
                    *(f"--env={name}={value}" for name, value in given.items()),
                    *([f"--volume={volume}"] if volume else []),
                    *(container, "--", *config(image)["Entrypoint"]),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        stack.callback(_end, process)
        client = stack.enter_context(
            openai.OpenAI(
                base_url=endpoint.openai_url,
                api_key=endpoint.api_key,
                max_retries=0,
                timeout=JOB_S,
            )
        )
        served = Served(endpoint, client, process, log_file)
        deadline_s = time.monotonic() + START_S
        # A start that failed talks to the endpoint too: it fails a waiting job.
        while not (endpoint.workers() and "phase: ready" in served.log()):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the worker died or is late:\n{served.log()[-4000:]}")
            time.sleep(0.1)
        yield served


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a container's processes; without a namespace of their own they are our descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        for member in [*family, process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=10)
    process.wait(10)


@contextlib.contextmanager
def no_network() -> Iterator[None]:
    """Leave this thread, and all that it starts, with nothing but the loopback interface."""
    with Path("/proc/thread-self/ns/net").open("rb") as home:
        _check(LIBC.unshare(CLONE_NEWNET))
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            _check(LIBC.setns(home.fileno(), CLONE_NEWNET))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
