"""Which hosts are this machine: what may go there in plain text, and who can reach it; addresses without secrets.

Pure.
"""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

_LOOPBACK_NAMES: Final = ("localhost", "localhost.localdomain")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host: a name or an address, that of IPv6 in brackets or not."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def redact_url(url: str) -> str:
    """Return a URL without its user and password, fit for messages."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def check_redis_url(url: str) -> str:
    """Return the address of a Redis, if it is one. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        raise ValueError(f"{redact_url(url)[:120]!r} is not a Redis address; write redis://host:6379/0")
    return url
