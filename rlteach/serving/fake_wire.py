"""HTTP/1.1 by hand, as little of it as a fake judge needs: read a request, write an answer, reset."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

from rlteach.serving.fake_replies import Answer

MOST = 8_000_000  # bytes of a request


async def read(reader: asyncio.StreamReader) -> tuple[str, dict[str, str], bytes] | None:
    """(path, headers in lower case, body) of one request; None at the end of the connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    path = head[0].split(" ")[1]
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
    length = int(headers.get("content-length", "0"))
    return (path, headers, await reader.readexactly(length)) if 0 <= length <= MOST else None


def wire(answer: Answer) -> bytes:
    status, headers, body = answer
    lines = [f"HTTP/1.1 {status} Fake", *(f"{k}: {v}" for k, v in headers.items()),
             f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


async def send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    writer.write(wire(answer))
    await writer.drain()


def reset(held: socket.socket) -> None:
    """From now on closing it says no goodbye: the other side sees a reset."""
    if held.fileno() >= 0:
        at_once = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
