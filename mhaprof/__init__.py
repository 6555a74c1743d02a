"""mhaprof: what attention costs, in operations, time and memory."""

__version__ = "0.1.0"
