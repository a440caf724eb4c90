"""Shows a job's dashboard in a notebook cell. Needs no library."""

from __future__ import annotations

import html
import json
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from .errors import UsageError

_LINK = "dashboard"  # the file in a run's directory with a link that has not been used

#: Shows the frame only on a page of this machine, and under the page's own host name. The dashboard's cookie is
#: SameSite=Strict, and ports do not matter to that. So the browser sends the cookie from the frame exactly if the host
#: name and the scheme are those of the page. A notebook adds the output to its page before or after its scripts run.
_SCRIPT = """
(() => {
  const of = %s, link = new URL(of.url), host = location.hostname;
  if (host !== "localhost" && host !== "127.0.0.1" || location.protocol !== link.protocol) return;
  link.hostname = host;
  let tries = 0;
  const show = () => {
    const place = document.getElementById(of.id);
    if (!place) { if (tries++ < 100) setTimeout(show, 50); return; }
    const frame = document.createElement("iframe");
    frame.src = link.href;
    frame.title = "Perdure dashboard";
    frame.style.cssText = `width: 100%%; height: ${of.height}px; border: 0`;
    place.replaceChildren(frame);
  };
  show();
})();
"""


class Dashboard:
    """The dashboard of a job, which a notebook shows as a frame.

    Args:
        url: The link. It admits one browser, once.
        height: The height of the frame in pixels.
        framed: Whether the dashboard lets pages of this machine embed it.

    Attributes:
        url: The link.
    """

    def __init__(self, url: str, height: int, framed: bool) -> None:
        self.url, self._height = url, int(height)
        self._framed = framed and urlsplit(url).hostname in ("127.0.0.1", "localhost")

    def __repr__(self) -> str:
        return f"the dashboard is at {self.url} (the link opens once)"

    def _repr_html_(self) -> str:
        port, url = urlsplit(self.url).port, html.escape(self.url)
        tunnel = f"If this program runs on another machine, forward the port: <code>ssh -L {port}:127.0.0.1:{port} HOST"
        text = f'<p>The dashboard is at <a href="{url}" target="_blank" rel="noopener">{url}</a>. The link opens once.'
        if not self._framed:
            return f"{text} {tunnel}</code>.</p>"
        name = f"perdure-{secrets.token_hex(8)}"  # a cell that runs again does not find the frame of its last output
        of = json.dumps({"id": name, "url": self.url, "height": self._height}).replace("<", "\\u003c")
        return (
            f'<div id="{name}">{text}</p></div>\n'
            f"<p><small>{tunnel}</code>.</small></p>\n<script>{_SCRIPT % of}</script>"
        )


def dashboard_of(folder: Path, height: int, framed: bool) -> Dashboard:
    """Return the dashboard of the run in a directory.

    Raises:
        UsageError: The run has no dashboard, or has ended.
    """
    try:
        link = (folder / _LINK).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        link = ""
    if not link:
        raise UsageError(
            'this job has no dashboard; start it with perdure.start(args=["--dashboard"]), or perdure up --dashboard'
        )
    return Dashboard(link, height, framed)
