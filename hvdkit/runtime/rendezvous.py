"""The meeting place of Horovod's Gloo ranks: `python -m hvdkit.runtime.rendezvous ADDRESS PORT`.

Prints the port it listens on (PORT 0 takes a free one) and serves until its parent dies.
"""

import sys

from hvdkit.runtime.processes import die_with_parent


def main(address: str, port: int) -> None:
    """Serve Horovod's rendezvous on address:port."""
    die_with_parent()
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
