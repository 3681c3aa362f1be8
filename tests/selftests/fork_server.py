"""A warmed Python that forks for each start of pytest: what a start imports is there already.

As a module: `Server`, the side of the test. As a script, with the number of a socket and the
folders of packages as arguments: the process that forks. It has one thread, so a fork is as safe
as a start, and it makes of the fork what `python -m pytest` finds: arguments, folder, environment,
output, exit status, and the .pth files of site-packages once more, which may act on the arguments.

Not like a start: what Python itself takes from its environment (`PYTHON...`, the locale). Who sets
that starts a process; so does who runs another checkout and wants its modules, which a server does
not preload for it. Standard library only at the top, as the script is what has to stay clean.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

THIRD_PARTY = (
    "pytest", "hypothesis.internal.observability", "hypothesis.strategies", "anyio.pytest_plugin",
    "xdist.plugin", "xdist.looponfail", "pytest_html.plugin", "pytest_metadata.plugin", "pydantic",
    "yaml", "psutil", "submitit", "ClusterShell.NodeSet", "orjson", "rich.console", "rich.table",
    "rich.live", "rich.progress", "jinja2", "matplotlib.figure", "matplotlib.backends.backend_svg",
    "matplotlib.backends.backend_agg", "multiprocessing.pool", "concurrent.futures.process",
)  # fmt: skip
"""What a start of pytest imports here, at once or later; one that is not installed is left out."""
NOT_OURS = (
    "fixtures.workloads", "fixtures.entry", "fixtures.challenge.answer", "fixtures.challenge.chain",
    "fixtures.challenge.group", "fixtures.challenge.sha256", "reports.second_judge",
)  # fmt: skip
"""Of the checkout's packages: what nodes import, and torch with it; a program of its own."""
OWN_START = ("PYTHON", "LC_", "LANG")
"""Variables that Python reads when it starts."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Of the server alone: numpy starts threads when it is imported, and a fork has but one of them."""
MESSAGE_BYTES = 1 << 20
NO_REWRITE = "\nPYTEST_DONT_REWRITE"
"""In its docstring: pytest does not warn that it comes too late to rewrite a module's asserts."""


# --- the side of the test


class Server:
    """A process that forks for each run; started at the first, ended with this one."""

    def __init__(self, checkout: Path | None = None) -> None:
        self._checkout = checkout
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = os.getpid()

    def run(
        self, arguments: Sequence[str], folder: Path, env: Mapping[str, str], timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run `python -m pytest ARGUMENTS` in a folder; as subprocess.run with captured text.

        Raises subprocess.TimeoutExpired after `timeout_s`, and the run is killed.
        """
        command = [sys.executable, "-m", "pytest", *arguments]
        connection = self._connection()
        request = json.dumps({"command": command, "folder": str(folder), "env": dict(env)})
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            socket.send_fds(connection, [request.encode()], [out.fileno(), err.fileno()])
            answer = connection.recv(MESSAGE_BYTES)
            assert answer, "the fork server has ended; what it said is in this test's stderr"
            pid = int(answer)
            connection.settimeout(timeout_s)
            try:
                status = int(connection.recv(MESSAGE_BYTES))
                ended = True
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                ended = False
            finally:
                connection.settimeout(None)
            if not ended:
                connection.recv(MESSAGE_BYTES)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read())
        if not ended:
            raise subprocess.TimeoutExpired(command, timeout_s, *texts)
        return subprocess.CompletedProcess(command, status, *texts)

    def _connection(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        if self._checkout is not None:
            command.append(str(self._checkout))
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=os.environ | ONE_THREAD
        )
        theirs.close()
        atexit.register(self.close)
        return self._socket

    def close(self) -> None:
        """End the server; it has no run at work."""
        if self._process is not None and self._socket is not None and os.getpid() == self._owner:
            self._socket.close()
            self._process.wait()
            self._process = self._socket = None


# --- the server


def preload(checkout: str | None) -> None:
    """Import what a run of the checkout will, or of any checkout."""
    # Python has put this file's folder there, and in it is a package named as one of Python's own.
    sys.path[0] = checkout if checkout is not None else os.devnull
    names = [*THIRD_PARTY, *_modules("_pytest", ("_pytest.pytester",))]
    if checkout is not None:
        for package in ("fixtures", "reports"):
            names += _modules(package, NOT_OURS)
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if checkout is not None:
        with contextlib.suppress(Exception):  # a run says what is wrong with its limits
            sys.modules["fixtures.thresholds.loader"].load(Path(checkout) / "thresholds.yaml")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in sys.stdlib_module_names:
            module.__doc__ = (module.__doc__ or "") + NO_REWRITE


def _modules(package: str, left_out: Sequence[str]) -> Iterator[str]:
    """The names of a package's modules, without programs."""
    found: ModuleType = importlib.import_module(package)
    yield package
    for module in pkgutil.iter_modules(found.__path__, f"{package}."):
        if module.name.endswith(".__main__") or module.name in left_out:
            continue
        if module.ispkg:
            yield from _modules(module.name, left_out)
        else:
            yield module.name


def serve(connection: socket.socket) -> int | None:
    """Fork for each request, until the test's side is gone; returns in each fork as well.

    There, what `sys.exit` takes; in the server 0.
    """
    while True:
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 2)
        if not message:
            return 0
        threads = os.listdir("/proc/self/task")  # noqa: PTH208
        assert len(threads) == 1, f"a fork of {len(threads)} threads is not safe"
        pid = os.fork()
        if pid == 0:
            connection.close()
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
                os.close(file)
            run(**json.loads(message))
            return 0
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def run(command: list[str], folder: str, env: dict[str, str]) -> None:
    """Be `python -m pytest`; raises SystemExit, as it does."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.orig_argv[:] = command
    sys.argv[:] = command[1:2] + command[3:]  # as site finds them: -m has not been looked up yet
    sys.path[0] = folder
    importlib.invalidate_caches()
    site.addsitedir(sysconfig.get_path("purelib"))
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)


def main() -> int | None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    preload(sys.argv[2] if len(sys.argv) > 2 else None)
    gc.collect()
    gc.freeze()
    return serve(connection)


if __name__ == "__main__":
    sys.exit(main())
