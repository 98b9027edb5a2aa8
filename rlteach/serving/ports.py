"""A listening socket, or one sentence that says why not and who has the port."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path


class ServeError(ValueError):
    """A server that cannot start; the message says what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Raises:
        ServeError: the host is no address of this machine, or somebody has the port.
    """
    if not 0 <= port <= 65535:  # getaddrinfo would take it modulo 65536
        raise ServeError(f"there is no port {port} at {host}: choose 1 to 65535, or 0 for any free one")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ServeError(f"host {host!r} and port {port} are no address ({error})") from None
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ServeError(f"port {port} is taken by {holder(host, port)}: stop that, or choose another "
                             "port (0: any free one)") from None
        why = error.strerror or str(error)
        raise ServeError(f"cannot listen at {host}, port {port} ({why}): choose another one") from None
    return sock


def holder(host: str, port: int) -> str:
    """Who listens there, as far as this machine tells: a server of ours, process name and id."""
    where = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(where, port, timeout=1)  # asks no proxy
    try:
        connection.request("GET", "/health")
        told = json.loads(connection.getresponse().read(10_000))
        if told["server"] == "rlteach":
            return f"an rlteach server with the model {str(told['model'])[:100]} (process {int(told['pid'])})"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        pass
    finally:
        connection.close()
    found = [f"{name} (process {pid})" for pid, name in _listeners(port)]
    return " and ".join(found) or "another process"


def _listeners(port: int) -> Iterator[tuple[int, str]]:
    """(pid, name) of processes that listen on this TCP port, from Linux's /proc; else nothing."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, rows):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: listening
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        try:
            if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                yield int(process.name), (process / "comm").read_text(encoding="utf-8").strip()
        except OSError:
            continue  # of another user, or gone
