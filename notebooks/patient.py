"""A client of a Jupyter kernel that does not miss a reply.

With widgets, nbclient sends on the same socket on which it waits for replies, and a reply that comes meanwhile may not
wake it until the wait ends. So the client waits for short times repeatedly. Plain nbconvert, whose wait has no end,
hangs for ever then, beside an idle kernel: on a busy machine in 1 of 11 runs of the notebook budget.
"""

import time
from queue import Empty
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.manager import AsyncKernelManager
from traitlets import Type

SHORT = 0.5  # seconds


class Channel(AsyncZMQSocketChannel):
    async def get_msg(self, timeout: float | None = None) -> dict[str, Any]:
        """The next message. Raises Empty if none comes within `timeout` seconds."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            rest = end - time.monotonic()
            try:
                return await super().get_msg(timeout=max(0.0, min(SHORT, rest)))
            except Empty:
                if rest <= SHORT:
                    raise


class Client(AsyncKernelClient):
    shell_channel_class = Type(Channel)


class Manager(AsyncKernelManager):
    client_factory = Type(Client)
