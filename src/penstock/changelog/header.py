"""What log a folder holds, and where it starts: one small file, of which a newer one takes the place.

    LOG-000000000007.json

The greatest number counts. A number is given once: of two writers that want to say where the log starts, one is
refused, and with that learns that it is no longer the log's writer.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from penstock.changelog.entry import FORMAT, with_checksum, without_checksum
from penstock.changelog.folder import Folder
from penstock.errors import StateError
from penstock.model.lsn import Lsn

_PREFIX, _SUFFIX = "LOG-", ".json"


@dataclass(frozen=True, slots=True)
class Header:
    """What log this is."""

    slot: str
    system_identifier: str
    start_lsn: Lsn
    """Transactions that committed before this position are not in the log."""
    timeline: int | None = None
    """The source's, of which the log's end is a part; None before the first connection."""
    first_sequence: int = 1
    """Entries before this number are not of the log: they are about to be removed."""
    session: str = ""
    """Which run of the receiver wrote this."""
    is_over: bool = False
    """Whether the log was given up: what follows it here is another, whose numbers go on."""
    number: int = 1
    """Which of the headers this is."""

    @property
    def name(self) -> str:
        """The file of this header."""
        return f"{_PREFIX}{self.number:012d}{_SUFFIX}"


def header_names(folder: Folder) -> list[str]:
    """List the headers there are, the one that counts last."""
    return [name for name in folder.names("", _SUFFIX) if name.startswith(_PREFIX)]


def header_number(name: str) -> int:
    """Return the number that a header's name has."""
    return int(name.removeprefix(_PREFIX).removesuffix(_SUFFIX))


def last_header(folder: Folder) -> Header | None:
    """Read the header that counts, of a log that is over too; None if there never was one."""
    while names := header_names(folder):
        content = folder.read_if_there(names[-1])
        if content is not None:  # or else a newer one has taken its place meanwhile
            return _decode(content, names[-1])
    return None


def find_header(folder: Folder) -> Header | None:
    """Read a log's header; None if there is no log, or none any more."""
    header = last_header(folder)
    return None if header is None or header.is_over else header


def read_header(folder: Folder) -> Header:
    """Read a log's header, or say that there is no log."""
    header = find_header(folder)
    if header is None:
        raise StateError(
            f"there is no change log in {folder}",
            remedy="Run the pipeline first: penstock run; or name the folder that holds LOG-….json: --log PATH",
        )
    return header


def put_header(folder: Folder, header: Header) -> bool:
    """Let a header count from now on, durably; return whether its number was free."""
    data = {"format": FORMAT, **asdict(header), "start_lsn": str(header.start_lsn)}
    return folder.put_if_absent(header.name, with_checksum(data))


def _decode(content: bytes, name: str) -> Header:
    data = without_checksum(content, name)
    del data["format"]
    return Header(**{**data, "start_lsn": Lsn.parse(data["start_lsn"])})
