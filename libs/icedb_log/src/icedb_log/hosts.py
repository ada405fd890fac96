"""Which hosts are this machine: what may go there in plain text, and who can reach it. Pure."""

import ipaddress
from typing import Final

_LOOPBACK_NAMES: Final = ("localhost", "localhost.localdomain")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host: a name or an address, that of IPv6 in brackets or not."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
