"""From what Spark, Arrow and the Delta library raise to our own errors, without a value from any row."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.errors import DestinationError, ErrorKind
from penstock.lake.fault import file_fault, parquet_fault

_log = logging.getLogger(__name__)
# Delta's conditions, e.g. DELTA_CONCURRENT_APPEND, and its Java classes, e.g. ConcurrentDeleteReadException.
_CONFLICT = re.compile(r"DELTA_CONCURRENT_|Concurrent\w*Exception|ProtocolChangedException|MetadataChangedException")
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]{4,})\]")


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise `DestinationError` for whatever fails inside; `what` says what was being done, and to which table."""
    try:
        yield
    except CommitFailedError as error:
        raise _conflict(what) from error
    except DeltaError as error:
        _log.debug("delta library failed: %s", what, exc_info=True)
        raise DestinationError(f"{what} failed in the Delta library ({type(error).__name__}).") from error
    except (PySparkException, Py4JError) as error:
        _log.debug("spark failed: %s", what, exc_info=True)
        raise spark_fault(what, str(error)) from error
    except pa.ArrowException as error:
        raise parquet_fault(what, error) from None
    except OSError as error:
        raise file_fault(what, error) from error


def spark_fault(what: str, said: str) -> DestinationError:
    """Return the error that Spark's text stands for; of the text only the condition is kept."""
    if _CONFLICT.search(said):
        return _conflict(what)
    condition = _CONDITION.search(said)
    return DestinationError(f"{what} failed in Spark ({condition[1] if condition else 'no condition given'}).")


def _conflict(what: str) -> DestinationError:
    return DestinationError(f"{what} lost to another writer's commit.", kind=ErrorKind.DESTINATION_CONFLICT)
