"""Which ports of 127.0.0.1 the local servers listen on, and whether they are free. Knows no server."""

import errno
import random
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields, replace
from typing import Self

from deploy.local.error import LocalStackError

HOST = "127.0.0.1"
FREE_RANGE = range(20000, 32000)


@dataclass(frozen=True)
class Ports:
    """One port for each listener; 0 means "pick a free one"."""

    kafka: int = 19092  # STROBE_KAFKA_PORT
    controller: int = 19093  # STROBE_CONTROLLER_PORT: Kafka's own quorum
    database: int = 15432  # STROBE_DATABASE_PORT
    registry: int = 18081  # STROBE_REGISTRY_PORT

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        chosen: dict[str, int] = {}
        for field in fields(cls):
            name = variable(field.name)
            text = environ.get(name)
            if text:
                if not text.isdecimal() or int(text) > 65535:
                    raise LocalStackError(f"{name}={text!r} is not a port (0 to 65535); unset it for {field.default}")
                chosen[field.name] = int(text)
        return cls(**chosen)

    @classmethod
    def any_free(cls) -> Self:
        return cls(0, 0, 0, 0)

    def settled(self) -> Self:
        """The same with each 0 replaced by a port that was free a moment ago."""
        return replace(self, **free_ports([field.name for field in fields(self) if not getattr(self, field.name)]))


def variable(listener: str) -> str:
    return f"STROBE_{listener.upper()}_PORT"


def free_ports(listeners: list[str]) -> dict[str, int]:
    """Below the range from which the kernel serves outgoing connections: from there a port may be gone when the server
    binds it, and a probe of a closed port can even connect to itself and so occupy it.
    """
    found: dict[str, int] = {}
    candidates = iter(random.SystemRandom().sample(FREE_RANGE, len(FREE_RANGE)))
    with ExitStack() as held:  # all are bound before any is released, so no two are the same
        for name in listeners:
            for port in candidates:
                probe = held.enter_context(socket.socket())
                with suppress(OSError):
                    probe.bind((HOST, port))
                    found[name] = port
                    break
            else:
                raise LocalStackError(f"no free port among {FREE_RANGE.start} to {FREE_RANGE.stop - 1}; name ports")
    return found


def require_free(port: int, server: str, listener: str) -> None:
    """SO_REUSEADDR as the servers themselves use it: connections that linger in TIME_WAIT are no obstacle."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            remedy = f"choose another with {variable(listener)}=PORT (0 picks one)"
            if error.errno == errno.EADDRINUSE:
                raise LocalStackError(
                    f"port {port} for {server} is taken by another program; end that program or {remedy}"
                ) from None
            raise LocalStackError(f"port {port} for {server} cannot be used ({error.strerror}); {remedy}") from None


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0
