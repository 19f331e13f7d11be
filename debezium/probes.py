"""Small questions to a service: does it accept connections, does it answer over HTTP.

Used by the services' `ready` and by `status`. An answer is yes or no; a service that is starting refuses connections,
which is a no and not an error.
"""

from __future__ import annotations

import http.client
import socket

from debezium.ports import HOST

TIMEOUT_S = 2.0


def listens(port: int) -> bool:
    """Whether something accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), TIMEOUT_S):
            return True
    except OSError:
        return False


def answers(port: int, path: str) -> bool:
    """Whether a GET of the path is answered with 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
