"""Loads, when imported, all that a receiver needs, compiled code too: for a process that receivers are forked from."""

import penstock.receiver.process  # noqa: F401  # to be there when one is forked
from penstock.wire.scan import warm_up

warm_up()
