"""Serving: conversations that outlive the GPU under them. `chat_app` is the public door; see README.md for the
files."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.serving.deploy import AppStatus, ChatService, chat_app, status, undeploy

__all__ = ["AppStatus", "ChatService", "chat_app", "status", "undeploy"]


def __getattr__(name: str) -> object:
    """Ray is imported when the door is used, not when a pure file beside it is."""
    if name not in __all__:
        raise AttributeError(name)
    from paceline.serving import deploy

    return getattr(deploy, name)
