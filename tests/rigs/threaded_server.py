"""An HTTP server of the standard library in a thread, for as long as a block lasts."""

import threading
from contextlib import contextmanager


@contextmanager
def serving_in_thread(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
