"""Puts the control API together."""

from fastapi import Depends, FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from paceline import __version__
from paceline.control import background, page, problems
from paceline.control.auth import caller
from paceline.control.metrics import CountRequests, Metrics
from paceline.control.routes import Inventory, router
from paceline.control.routes_health import health
from paceline.control.watch import Watch
from paceline.inventory.store import Store
from paceline.sdk.webhook import Webhook


def create_app(store: Store, webhooks: tuple[Webhook, ...] = ()) -> FastAPI:
    """The application around an open store whose schema is up to date. Closing the store is the caller's.

    Alerts go to the log, and to `webhooks`.
    """
    app = FastAPI(
        title="Paceline",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=background.lifespan,
    )
    app.state.store, app.state.webhooks = store, webhooks
    app.state.watch = Watch(store.revision)
    metrics = Metrics(store)
    app.add_middleware(CountRequests, requests=metrics.requests)
    problems.install(app)

    @app.get("/healthz")
    def healthz(inventory: Inventory) -> dict[str, str | int]:
        return {"status": "ok", "revision": inventory.revision(), "version": __version__}

    @app.get("/metrics", dependencies=[Depends(caller)])
    def scrape() -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    app.include_router(router)
    app.include_router(health)
    page.install(app)
    return app
