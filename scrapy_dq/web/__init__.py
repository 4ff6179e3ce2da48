"""A web page of all crawls in a Redis: an ASGI app, for `scrapy dq web` or to mount in another ASGI app."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scrapy.settings import Settings

__all__ = ["app"]


def app(
    settings: Settings, *, token: str = "", allow_steering: bool = False, hosts: Iterable[str] = ()
) -> Any:
    """Return an ASGI app with the page of all crawls in the Redis of a project; needs the extra `web`.

    Args:
        settings: the project's settings, for example from `scrapy.utils.project.get_project_settings`.
        token: needed to read or change anything; empty: anyone who reaches the app may read.
        allow_steering: users with the token may also pause, resume, drain, stop, limit, retry and forget.
        hosts: names under which browsers reach the app, besides localhost and all IP addresses.
    Raises:
        ConfigError: a setting is wrong, or the token is too short, or missing although steering is allowed.
        ImportError: Starlette is not installed.
    """
    from scrapy_dq.inspection.place import project_config, project_settings
    from scrapy_dq.web.access import Access
    from scrapy_dq.web.asgi import make_app

    access = Access.of(token, allow_steering, hosts)
    return make_app(project_config(settings), project_settings(settings), access)[0]
