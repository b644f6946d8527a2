"""The server's side of a forwarded port: websocket frames, each with its channel in front."""

import base64
import hashlib
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_BINARY, _CLOSE, _PING = 2, 8, 9


def accept(handler: BaseHTTPRequestHandler) -> None:
    """Accept the client's upgrade to websocket."""
    key = handler.headers["Sec-WebSocket-Key"] + _MAGIC
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    answer = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    handler.send_header("Sec-WebSocket-Accept", answer)
    handler.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
    handler.end_headers()


def forward(handler: BaseHTTPRequestHandler, host: str, port: int) -> None:
    """Carry bytes between the client and a port of a pod until one of them ends."""
    lock = threading.Lock()

    def send(data: bytes, opcode: int = _BINARY) -> None:
        size = len(data)
        head = struct.pack("!B", 0x80 | opcode)
        if size < 126:
            head += struct.pack("!B", size)
        elif size < 1 << 16:
            head += struct.pack("!BH", 126, size)
        else:
            head += struct.pack("!BQ", 127, size)
        with lock:
            handler.wfile.write(head + data)
            handler.wfile.flush()

    for channel in (0, 1):
        send(bytes([channel]) + struct.pack("<H", port))
    try:
        pod = socket.create_connection((host, port), 5)
        pod.settimeout(None)
    except OSError as error:
        send(b"\x01" + f"cannot reach port {port}: {error}".encode())
        send(b"", _CLOSE)
        return

    def receive() -> None:
        try:
            while data := pod.recv(1 << 16):
                send(b"\x00" + data)
            send(b"", _CLOSE)
        except (OSError, ValueError):
            pass  # the client has left, and its files are closed

    threading.Thread(target=receive, name="forward", daemon=True).start()
    try:
        while (frame := _read(handler)) is not None:
            opcode, data = frame
            if opcode == _CLOSE:
                break
            if opcode == _BINARY and data[0] == 0:
                pod.sendall(data[1:])
    except (OSError, ValueError):
        pass
    finally:
        pod.close()


def _read(handler: BaseHTTPRequestHandler) -> tuple[int, bytes] | None:
    head = handler.rfile.read(2)
    if len(head) < 2:
        return None
    size = head[1] & 0x7F
    if size == 126:
        (size,) = struct.unpack("!H", handler.rfile.read(2))
    elif size == 127:
        (size,) = struct.unpack("!Q", handler.rfile.read(8))
    mask = handler.rfile.read(4)
    data = bytearray(handler.rfile.read(size))
    whole = len(data) // 4 * 4
    key = int.from_bytes(mask, "little")
    for at in range(0, whole, 4):
        struct.pack_into("<I", data, at, struct.unpack_from("<I", data, at)[0] ^ key)
    for at in range(whole, len(data)):
        data[at] ^= mask[at % 4]
    return head[0] & 0x0F, bytes(data)
