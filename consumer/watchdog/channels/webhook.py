"""The channel `webhook`: an alert as a POST of JSON, signed as Standard Webhooks say.

The receiver knows a repeat by the header `webhook-id`, which is the alert's ID. What an answer means: 2xx is delivered;
408, 425, 429 and 5xx are an outage, with the wait the receiver asks for; anything else needs an operator.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import time
from typing import Final

import orjson
from standardwebhooks.webhooks import Webhook as Signer

from consumer.errors import ConfigurationError, Outage
from consumer.http import Response
from consumer.llm.retry_after import asked_wait
from consumer.watchdog.alert import Alert
from consumer.watchdog.channels import request
from consumer.watchdog.channels.wording import document, moment

_DEPENDENCY: Final = "webhook"
_SHORTEST_KEY: Final = 16
_LATER: Final = frozenset({408, 425, 429})
_ADVICE: Final = {
    401: "the receiver does not take the signature: give both sides the same secret",
    403: "the receiver does not take the signature: give both sides the same secret",
    404: "nothing listens at the path: correct url",
    405: "the path takes no POST: correct url",
    410: "the receiver has switched this webhook off: switch it on there, or take the channel out of the file",
    413: "the receiver takes no body of this size: raise its limit",
}


class Webhook:
    """Posts alerts to one URL."""

    def __init__(self, name: str, url: str, secret: str, *, seconds: float = 10.0) -> None:
        """`secret` is base64, with or without `whsec_`; `seconds` bounds a request as a whole.

        Raises:
            ConfigurationError: the secret is no base64, or too short.
        """
        self.name = name
        self._url = url
        self._seconds = seconds
        try:
            key = _key(secret)
        except (binascii.Error, ValueError):
            raise ConfigurationError(
                f"channel {name}: a secret of Standard Webhooks is base64, with or without whsec_; "
                "make one with `openssl rand -base64 32`"
            ) from None
        if len(key) < _SHORTEST_KEY:
            raise ConfigurationError(
                f"channel {name}: the secret is shorter than {_SHORTEST_KEY} bytes and can be guessed"
            )
        self._signer = Signer(key)

    def send(self, alert: Alert) -> None:
        """Post it; see `Channel.send`."""
        told = document(alert)
        body = orjson.dumps({"type": f"watchdog.{told['state']}", "timestamp": moment(alert.detected_at), "data": told})
        now = dt.datetime.now(dt.UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": told["id"],
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(told["id"], now, body.decode()),
        }
        answer = request.send(
            "POST", self._url, dependency=_DEPENDENCY, seconds=self._seconds, content=body, headers=headers
        )
        if not answer.ok:
            raise self._refused(answer)

    def _refused(self, answer: Response) -> ConfigurationError | Outage:
        said = f"channel {self.name}: {request.shown(self._url)} answered {answer.status}"
        if answer.status in _LATER or answer.status >= 500:
            wait = asked_wait(answer.headers, time.time())
            return Outage(said, dependency=_DEPENDENCY, code=f"http_{answer.status}", retry_after_seconds=wait)
        if 300 <= answer.status < 400:
            return ConfigurationError(f"{said}, a redirect, which is not followed: write the final address into url")
        advice = _ADVICE.get(answer.status, "it refuses the alert for good: correct url and secret, or the receiver")
        return ConfigurationError(f"{said}; {advice}")


def _key(secret: str) -> bytes:
    # The library skips what is no base64, and would work with the rest.
    text = secret.removeprefix("whsec_")
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
