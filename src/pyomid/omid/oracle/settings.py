"""The settings of a TSO."""

from __future__ import annotations

from dataclasses import dataclass

from pyomid.config import DURATION_S_MAX
from pyomid.errors import Misuse


@dataclass(frozen=True, slots=True, kw_only=True)
class TsoSettings:
    """The settings of a TSO. Times are in seconds unless a name says otherwise."""

    conflict_map_entries: int = 1 << 20
    window_starts: int = 4096
    """The maximum number of starts in the window below a batch. That is more than clients take during one flush."""
    batch_entries_max: int = 16_384
    flushes_in_flight_max: int = 2
    """The maximum number of flushes in flight at once."""
    max_transaction_age_s: float = 600.0
    open_starts_interval_s: float = 2.0
    """How often E and LWM rise to just below the oldest open start."""
    retention_s: float | None = None
    """How long history is kept. None takes over the value of the leader state, which is the last one that was set."""
    lease_seconds: float = 300.0
    """The term of a lease whose request names no term."""
    watermark_interval_s: float = 1.0
    """The shortest time between two publications of W."""
    tables_interval_s: float = 5.0
    """How often the list of registered tables is read again."""
    commit_retry_s: float = 600.0
    """How long the branches of an answered large commit are remembered for its retries."""
    store_retry_s: float = 30.0
    """How long a failing store call is retried. After that its request is refused, or the process ends if more depends
    on the call."""
    stall_s_max: float = 1.0
    """A longer gap between two events counts as a stall; then the TSO reads the leader state before it replies (T4)."""
    ceiling_step: int = 1_000_000_000
    """How many timestamps one durable write makes usable, in nanoseconds. A new TSO waits until its wall clock has
    passed the old ceiling; that takes at most this long, which is less than a lease."""
    ceiling_renew_remaining: int = 500_000_000
    accept_clock: bool = False
    """True if a person has confirmed that the wall clock is right (`wall_clock.check_clock`)."""
    ceiling_elsewhere: bool = False
    write_set_fraction_max: float = 0.25
    """The largest write set, as a fraction of the conflict map. A larger write set would evict the entries of all other
    commits."""
    reported_ids_max: int = 16_000_000
    """The maximum number of reported ids that are kept beside the conflict map; each takes 8 bytes."""
    unknown_tables_max: int = 1000
    """The maximum number of tables missing from the catalog that the TSO remembers. Each gets a durable mark when a
    commit names it (K6)."""
    leases_max: int = 10_000
    """The maximum number of live leases. All live leases are in the leader state, which is written as a whole."""
    refused_starts_max: int = 100_000
    """The maximum number of starts above D, sealed or named by a retry, that the TSO remembers. The TSO forgets a start
    when D passes it."""

    def __post_init__(self) -> None:
        for name in (
            "conflict_map_entries",
            "window_starts",
            "batch_entries_max",
            "flushes_in_flight_max",
            "ceiling_step",
        ):
            self._check(name, 1)
        for name in ("max_transaction_age_s", "lease_seconds", "stall_s_max"):
            self._check(name, 0.001)
        for name in (
            "unknown_tables_max",
            "leases_max",
            "refused_starts_max",
            "reported_ids_max",
        ):
            self._check(name, 0)
        for name in (
            "commit_retry_s",
            "store_retry_s",
            "watermark_interval_s",
            "tables_interval_s",
            "open_starts_interval_s",
        ):
            self._check(name, 0)

        if self.retention_s is not None:
            self._check("retention_s", 0)
            if self.retention_s > DURATION_S_MAX:
                raise Misuse(f"the TSO's retention_s is {self.retention_s}; the maximum is a hundred years")

    def _check(self, name: str, lowest: float) -> None:
        value = getattr(self, name)
        if not lowest <= value < float("inf"):
            raise Misuse(
                f"the TSO's {name} is {value}: it must be a finite number of at least {lowest}", name=name, value=value
            )

    @property
    def write_set_ids_max(self) -> int:
        return max(1, int(self.conflict_map_entries * self.write_set_fraction_max))
