"""Where points are measured: this process, worker processes, Ray actors.

Same records in and out; only the transport differs.
"""
