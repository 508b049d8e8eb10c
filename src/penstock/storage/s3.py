"""Files in a bucket of S3, or of a store that speaks its protocol.

An object appears whole when it is written, and is durable then: there is nothing to sync, and nothing to rename. What
`os.link` is on a disk is here a PUT with `If-None-Match: *`, which the store refuses where the name is taken.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.failpoint import hit

if TYPE_CHECKING:
    from obstore.store import S3Store

# A Parquet file's footer is there, and of the small files that batches leave behind the whole: one request for both.
_TAIL_BYTES = 64 << 10
# A store that does not answer for so long is an error, which is told, and tried again as all errors are.
_RETRY_S = 60
# A larger object is uploaded in parts of this size, so many at once: what a file that is being written has in memory.
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 3
_SCHEMES = ("s3://", "s3a://")


@dataclass(frozen=True, slots=True)
class S3Settings:
    """How a store is reached. What is left out comes from AWS_… in the environment, or from the machine's own role."""

    endpoint: str | None = None
    """None for Amazon's own."""
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def options(self) -> dict[str, str]:
        """The settings under the names that the object store libraries share."""
        is_plain = self.endpoint is not None and self.endpoint.startswith("http://")
        given = {
            "aws_endpoint": self.endpoint,
            "aws_region": self.region,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_allow_http": "true" if is_plain else None,
            "aws_conditional_put": "etag",
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class S3Files:
    """The objects of one bucket."""

    bucket: str
    settings: S3Settings

    is_local: ClassVar[bool] = False

    @property
    def options(self) -> Mapping[str, str]:
        """What the Delta library has to be told."""
        return self.settings.options

    @property
    def _store(self) -> S3Store:
        return _opened(self.bucket, self.settings)

    def path(self, location: str) -> str:
        """Return the key of what a URL names, which must be in this bucket."""
        for scheme in _SCHEMES:
            if location.startswith(f"{scheme}{self.bucket}/"):
                return location.removeprefix(f"{scheme}{self.bucket}/")
        raise OSError(errno.EXDEV, f"{location} is not in the bucket {self.bucket}")

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder."""
        return list(self.times(folder))

    def folders(self, folder: str) -> list[str]:
        """Return the names of what has objects below it."""
        import obstore

        with _os_errors():
            listed = obstore.list_with_delimiter(self._store, f"{folder.rstrip('/')}/")["common_prefixes"]
        return [each.rstrip("/").rpartition("/")[2] for each in listed]

    def times(self, folder: str) -> dict[str, float]:
        """Return the same with times."""
        import obstore

        with _os_errors():
            listed = obstore.list_with_delimiter(self._store, f"{folder.rstrip('/')}/")["objects"]
        return {str(each["path"]).rpartition("/")[2]: each["last_modified"].timestamp() for each in listed}

    def read(self, path: str, start: int = 0, size: int = -1) -> bytes | None:
        """Return an object's content, or a part of it."""
        import obstore

        with suppress(FileNotFoundError), _os_errors():
            if size < 0:
                return bytes(obstore.get(self._store, path).bytes())[start:]
            return bytes(obstore.get_range(self._store, path, start=start, length=size))
        return None

    def identity(self, path: str) -> tuple[Any, ...] | None:
        """Return the object's tag, time and size."""
        import obstore

        with suppress(FileNotFoundError), _os_errors():
            found = obstore.head(self._store, path)
            return found["e_tag"], found["last_modified"], found["size"]
        return None

    def open(self, path: str) -> Any:
        """Open an object that is there."""
        return _Reader(self._store, path)

    def create(self, path: str) -> S3File:
        """Begin an object."""
        return S3File(self, path)

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Let the store decide; what it refuses may be there by a first attempt of ours whose answer was lost."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        hit("storage.before_put")
        try:
            with _os_errors():
                obstore.put(self._store, path, content, mode="create")
        except AlreadyExistsError:
            return self.read(path) == content
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, f"there is no bucket {self.bucket}") from error
        return True

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        import obstore

        with suppress(FileNotFoundError), _os_errors():
            obstore.delete(self._store, path)

    def remove_all(self, paths: Iterable[str]) -> None:
        """Remove objects, a thousand with a request."""
        import obstore

        with suppress(FileNotFoundError), _os_errors():
            obstore.delete(self._store, list(paths))

    def remove_folder(self, folder: str) -> None:
        """Remove the objects of a folder."""
        self.remove_all(f"{folder}/{name}" for name in self.names(folder))

    def sync(self, folder: str) -> None:
        """Do nothing: an object that is there has its name."""

    def make_folder(self, path: str) -> None:
        """Do nothing: a folder is there when a name has it."""


class S3File:
    """An object being written, in parts if it is large; it is not there before it is finished."""

    def __init__(self, files: S3Files, path: str) -> None:
        import obstore

        self._files = files
        self._path = path
        self._writer = obstore.open_writer(
            files._store,  # noqa: SLF001
            path,
            buffer_size=_PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )
        self.file = _Sink(self._writer)
        self.size = 0
        self._is_finished = False

    def finish(self, *, syncs_name: bool = True) -> None:  # noqa: ARG002  (names are durable here)
        """Let the object appear."""
        with _os_errors():
            self._writer.close()
        self.size = self.file.tell()
        self._is_finished = True

    def discard(self) -> None:
        """Give the upload up, or remove what it made."""
        if self._is_finished:
            self._files.remove(self._path)
            return
        abandoned = OSError(errno.ECANCELED, "given up")
        # Nobody asked for it; what a store keeps of it, it forgets by its own rules.
        with suppress(Exception):
            self._writer.__exit__(type(abandoned), abandoned, None)


class _Sink(io.RawIOBase):
    """What Arrow writes to."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        with _os_errors():
            self._writer.write(data)
        size = memoryview(data).nbytes
        self._at += size
        return size


class _Reader(io.RawIOBase):
    """What Arrow reads from: a range is a request, but for the object's end, which comes with the first one."""

    def __init__(self, store: S3Store, path: str) -> None:
        import obstore

        self._store = store
        self._path = path
        self._at = 0
        try:
            with _os_errors():
                found = obstore.get(store, path, options={"range": {"suffix": _TAIL_BYTES}})
                self._tail = bytes(found.bytes())
            self._size = int(found.meta["size"])
        except OSError:
            # An empty object has no end that could be asked for.
            if obstore.head(store, path)["size"]:
                raise
            self._tail, self._size = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        length = max(0, self._size - self._at)
        length = length if size < 0 else min(size, length)
        start, self._at = self._at, self._at + length
        behind = start - (self._size - len(self._tail))
        return self._tail[behind : behind + length] if behind >= 0 else self._fetched(start, length)

    def _fetched(self, start: int, length: int) -> bytes:
        import obstore

        if not length:
            return b""
        with _os_errors():
            return bytes(obstore.get_range(self._store, self._path, start=start, length=length))


@cache
def _opened(bucket: str, settings: S3Settings) -> S3Store:
    """Open a store once in every process: it keeps its connections, and credentials that it had to ask for."""
    from obstore.store import S3Store

    options: Any = settings.options
    return S3Store(bucket, config=options, retry_config={"retry_timeout": timedelta(seconds=_RETRY_S)})


@contextmanager
def _os_errors() -> Iterator[None]:
    """Raise what a disk would; a missing object is `FileNotFoundError` already."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except AlreadyExistsError:
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(errno.EACCES, "the object store denies access") from error
    except BaseError as error:
        raise OSError(errno.EIO, f"the object store failed ({type(error).__name__})") from error
