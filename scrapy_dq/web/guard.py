"""Check requests before the app gets them, and set the headers of each answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse

from scrapy_dq.web.access import Access

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES = 262_144
HEADERS = {
    # The page may contain no inline script or style, and no script can turn text into HTML.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests that lack a needed token, and requests that no page of this app sends.

    Requests of the second kind name another host, come from another site, have another content type, or have
    a large body. The app uses neither CORS nor cookies, so a page of another site can neither read from here
    nor send the token.
    """

    def __init__(
        self, app: Any, access: Access, public: Callable[[str], bool], *, any_host: bool = False
    ) -> None:
        """Guard *app* with the rights in *access*.

        Args:
            public: returns whether the resource at a path holds no data of a crawl.
            any_host: accept any Host header, if a token is needed.
        """
        self._app = app
        self._access = access
        self._public = public
        self._any_host = any_host and bool(access.token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no WebSocket

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            status, error = refused
            extra = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
            await JSONResponse({"error": error}, status, extra)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and the reason for a refusal, or None if the request may pass."""
        headers, method = Headers(scope=scope), scope["method"]
        host = headers.get("host", "")
        if not (self._any_host or self._access.knows(host)) or len(headers.getlist("host")) > 1:
            return 421, "this server is not known by that name: --allow-host of `scrapy dq web` adds one"
        public = self._public(_path(scope))
        site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
        # A link on another site may lead to the page, but no other site may load anything from it.
        is_link = public and method != "POST" and headers.get("sec-fetch-dest", "") == "document"
        if site not in ("", "none", "same-origin") and not is_link:
            return 403, "this request comes from another site"
        if origin and (origin == "null" or urlsplit(origin).netloc.lower() != host.lower()):
            return 403, "this request comes from another site"
        if method == "POST":
            if not self._access.steering:
                return 403, "read-only: start `scrapy dq web` with --allow-steering"
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                return 415, "the content type has to be application/json"
            length = headers.get("content-length", "")
            if not length.isdigit() or int(length[:12]) > MAX_BODY_BYTES:
                return 413, f"a Content-Length of at most {MAX_BODY_BYTES:,} bytes is needed"
        if not public and not self._access.admits(headers.get("authorization", "")):
            return 401, "the token is missing or wrong"
        return None


def _path(scope: Scope) -> str:
    """Return the path below the mount point of this app."""
    path, root = scope["path"], scope.get("root_path", "")
    return str(path[len(root) :] if root and path.startswith(root) else path) or "/"
