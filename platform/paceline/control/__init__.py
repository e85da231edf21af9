"""The control API and the web page: FastAPI around `inventory.store.Store`. Nothing is decided here."""
