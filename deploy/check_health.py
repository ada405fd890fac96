"""Ask the process of this container whether it is well: the health check of the images.

python check_health.py      exits 0 when /healthz of ICEDB_METRICS_PORT answers 200, else 1 with what is wrong
"""

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 4


def main() -> int:
    """Ask once and print what is wrong, if anything is."""
    port = os.environ.get("ICEDB_METRICS_PORT", "0")
    if port == "0":
        sys.stderr.write("ICEDB_METRICS_PORT is not set: there is no /healthz to ask\n")
        return 1
    url = f"http://127.0.0.1:{port}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S):  # http on loopback  # nosec B310
            return 0
    except urllib.error.HTTPError as error:
        with error:
            sys.stderr.write(f"{url}: {error.code} {error.read(500).decode(errors='replace')}\n")
    except OSError as error:
        sys.stderr.write(f"{url}: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
