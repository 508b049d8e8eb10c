"""From what Iceberg's library, Spark and Arrow raise to our own errors, without a value from any row."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from penstock.destinations.iceberg.client import java_class
from penstock.errors import DestinationError, ErrorKind
from penstock.lake.fault import file_fault, parquet_fault

_log = logging.getLogger(__name__)
# Another writer's commit came first; nothing of ours was written. A table may also be made by somebody else.
_CONFLICTS = frozenset({"CommitFailedException", "AlreadyExistsException"})
_DENIED = frozenset({"ForbiddenException", "NotAuthorizedException", "AccessControlException", "AccessDeniedException"})
# Whether it was committed may not be known, nor need it be: the position is read before anything is written again.
_UNAVAILABLE = frozenset(
    {
        "CommitStateUnknownException",
        "RESTException",
        "RuntimeIOException",
        "ServiceFailureException",
        "ServiceUnavailableException",
        "UncheckedIOException",
        "UncheckedSQLException",
    }
)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise `DestinationError` for whatever fails inside; `what` says what was being done, and to which table."""
    try:
        yield
    except Py4JJavaError as error:
        _log.debug("iceberg failed: %s", what, exc_info=True)
        raise java_fault(what, java_class(error)) from error
    except (PySparkException, Py4JError) as error:
        _log.debug("spark failed: %s", what, exc_info=True)
        raise DestinationError(f"{what} failed in Spark ({type(error).__name__}).") from error
    except pa.ArrowException as error:
        raise parquet_fault(what, error) from None
    except OSError as error:
        raise file_fault(what, error) from error


def java_fault(what: str, class_name: str) -> DestinationError:
    """Return the error that a Java exception stands for; its message may hold values, its class cannot."""
    simple = class_name.rpartition(".")[2].rpartition("$")[2]
    if simple in _CONFLICTS:
        return DestinationError(f"{what} lost to another writer's commit.", kind=ErrorKind.DESTINATION_CONFLICT)
    if simple in _DENIED:
        return DestinationError(f"{what} was denied ({simple}).", kind=ErrorKind.DESTINATION_PERMISSION_DENIED)
    kind = ErrorKind.DESTINATION_UNAVAILABLE if simple in _UNAVAILABLE else ErrorKind.DESTINATION_ERROR
    return DestinationError(f"{what} failed in Iceberg's library ({simple}).", kind=kind)
