"""What the receiver process is told at its start, and the lines it exchanges with the driver afterwards.

The driver writes one JSON object per line to the receiver's standard input, the settings first; the
receiver writes one per line to its standard output. Secrets travel here and never on a command line.
When its input ends, the receiver finishes and exits: it never outlives its driver for long.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.changelog.folder import Folder
from penstock.changelog.retention import Retention
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.special import SpecialValues
from penstock.postgres.connection import SourceAddress
from penstock.storage.s3 import S3Settings


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """All that the receiver needs to know."""

    address: SourceAddress
    slot: str
    publication: str
    log: Folder
    spool: Path
    """Where transactions in progress wait, on a disk."""
    policies: ValuePolicies = field(default_factory=ValuePolicies)
    max_bytes: int = 64 << 20
    max_fill_ms: int = 1000
    max_log_bytes: int = 10 << 30
    max_memory_bytes: int = 512 << 20
    keep_ms: int = 0
    keep_bytes: int = 0
    acknowledges_staged: bool = False
    status_interval_s: float = 0.5
    """How often the server hears of us and, when it is silent, is asked where it stands."""
    heartbeat_s: float = 0.0
    """How often a small transaction is made on the source; 0 for never."""
    failpoints: str = ""

    @property
    def retention(self) -> Retention:
        """What the log keeps beyond need."""
        return Retention(self.keep_ms, self.keep_bytes, self.max_log_bytes)

    def to_line(self) -> bytes:
        """Return the settings as the first line of input."""
        data = {**asdict(self), "spool": str(self.spool)}
        data["policies"] = {"default": self.policies.default, "columns": dict(self.policies.columns)}
        return json.dumps(data).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> ReceiverSettings:
        """Rebuild what `to_line` gave."""
        data: dict[str, Any] = json.loads(line)
        policies = data["policies"]
        columns = {name: SpecialValues(policy) for name, policy in policies["columns"].items()}
        data["policies"] = ValuePolicies(SpecialValues(policies["default"]), columns)
        data["address"] = SourceAddress(**data["address"])
        s3 = data["log"]["s3"]
        log = Folder(data["log"]["location"], None if s3 is None else S3Settings(**s3))
        return cls(**{**data, "log": log, "spool": Path(data["spool"])})


@dataclass(frozen=True, slots=True)
class Command:
    """What the driver tells the receiver: how far to acknowledge, and what the log may forget."""

    acknowledge: Lsn
    trim: Lsn
    """Changes from here on are needed; what is before it stays only as long as the retention says."""

    def to_line(self) -> bytes:
        """Return the command as a line."""
        return json.dumps({"acknowledge": str(self.acknowledge), "trim": str(self.trim)}).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Command:
        """Rebuild what `to_line` gave."""
        data = json.loads(line)
        return cls(Lsn.parse(data["acknowledge"]), Lsn.parse(data["trim"]))
