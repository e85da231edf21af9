"""The inventory: what the fleet is and was. The only place with SQL.

`store.Store` is the door; each file beside it holds the commands of one noun, all taking an open `unit.Unit`.
Every file here is a shell around SQL, except `rows.py` and `words.py`, which only translate.
"""
