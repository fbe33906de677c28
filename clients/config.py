"""How a client behaves, and who it is. Values only; the defaults are the contract's."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.constants import ACK_TIMEOUT_S, DETECTION_LIMIT_S, PULL_MAILBOX_WINDOW
from schemas.wire import CursorKind

__all__ = ["ClientConfig", "Login"]


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Times in seconds. What a value breaks when it is larger or smaller stands beside it."""

    ack_timeout_s: float = ACK_TIMEOUT_S
    """Silence after a SEND_MESSAGE before the connection is probed (GW-09)."""

    detection_limit_s: float = DETECTION_LIMIT_S
    """Silence after which the connection counts as dead; above `ack_timeout_s` (GW-09, GATE-07)."""

    pull_debounce_s: float = 1.0
    """From the first push to the pull that moves the cursor over it. Shorter: a pull for every push. Longer: a reconnect
    repeats more of what was already shown."""

    pull_window: int = PULL_MAILBOX_WINDOW
    """Pulls in flight during a login (CUR-08); the gateway closes on one more."""

    pull_max_items: int = 500
    """Entries of a batch. More: one Redis scan holds up others. Fewer: more round trips for a long absence."""

    pull_max_bytes: int = 512 * 1024
    """Soft bound of a batch (EVT-06)."""

    refused_retry_s: float = 0.5
    """Pause before what was refused as retryable is tried again."""

    reconnect_delays_s: tuple[float, ...] = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
    """Pauses before the first, second, ... dial after a loss; the last one repeats. Reset by ONLINE_READY."""

    pending_max_age_s: float = 24 * 3600
    """A message older than this is not sent again (SDK-06, client_pending_max_age)."""

    foreground: bool = True
    """Which cap the heartbeat has (GW-08)."""

    keep_timeline: bool = True
    """Whether shown entries stay in memory; a load generator keeps its own record."""


@dataclass(frozen=True, slots=True)
class Login:
    """Who logs in. The access token names tenant, user and device to the gateway; here they only have to be right."""

    tenant: int
    user: int
    device_id: bytes
    access_token: str
    start: CursorKind = CursorKind.ZERO
    first_ordinal: int = 0
    """Where this device's client_message_ids go on (SDK-04)."""
