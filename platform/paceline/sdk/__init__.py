"""The client library: needs httpx and pydantic, never ray, torch or SQL.

`core` and `calls` hold what both clients share and do no I/O; `client` and `aio` are the wires.
"""
