"""The dashboard in a notebook cell."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.request import urlopen

import pytest
from conftest import SMALL

import perdure
from perdure._notebook import Dashboard, dashboard_of

LINK = "http://127.0.0.1:4567/#0123"


class Page(HTMLParser):
    """The elements, the script and the text of some HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.script, self.text = "", ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.script += data
        else:
            self.text += data


def settings(page: Page) -> dict[str, object]:
    found = re.search(r"of = (\{.*?\}), link", page.script)
    assert found is not None, page.script
    of: dict[str, object] = json.loads(found[1])
    return of


def test_html() -> None:
    shown = Dashboard(LINK, 500, framed=True)
    assert shown.url == LINK
    assert repr(shown) == f"the dashboard is at {LINK} (the link opens once)"
    page, again = Page(shown._repr_html_()), Page(shown._repr_html_())
    assert settings(page) == {"id": page.attributes["id"], "url": LINK, "height": 500}
    assert page.attributes["id"] != again.attributes["id"]
    assert page.attributes["href"] == LINK
    assert "The link opens once" in page.text
    assert "ssh -L 4567:127.0.0.1:4567 HOST" in page.text


def test_script_runs() -> None:
    """The script parses, and adds a frame only on pages of this machine and of the link's scheme."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing")
    script = Page(Dashboard(LINK, 500, framed=True)._repr_html_()).script
    for place, want in {
        "http://localhost:8888/lab": "http://localhost:4567/#0123",
        "http://127.0.0.1:8888/": LINK,
        "https://localhost:8888/": "",
        "http://hub.example/": "",
        "vscode-webview://a0b1/": "",
    }.items():
        program = (
            f"const location = new URL({json.dumps(place)}), frame = {{ style: {{}}, src: '' }};"
            "const document = { createElement: () => frame, getElementById: () => ({ replaceChildren() {} }) };"
            f"{script}; console.log(frame.src);"
        )
        said = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True, timeout=60)
        assert said.stdout.strip() == want, place


@pytest.mark.parametrize(("url", "framed"), [(LINK, False), ("https://10.0.0.5:8000/#01", True)])
def test_link_only(url: str, framed: bool) -> None:
    page = Page(Dashboard(url, 700, framed)._repr_html_())
    assert page.script == ""
    assert page.attributes["href"] == url


def test_escaped() -> None:
    url = 'http://localhost:1/#</script><img src=x onerror="a()">'
    page = Page(Dashboard(url, 700, framed=True)._repr_html_())
    assert page.tags == ["div", "p", "a", "p", "small", "code", "script"]
    assert page.attributes["href"] == url
    assert settings(page)["url"] == url


def test_without_a_dashboard(tmp_path: Path) -> None:
    with pytest.raises(perdure.UsageError, match=r'^this job has no dashboard; .*start\(args=\["--dashboard"\]\)'):
        dashboard_of(tmp_path, 700, framed=True)


def test_of_a_job(tmp_path: Path) -> None:
    with perdure.start(clocks=3, out=tmp_path / "run", args=[*SMALL, "--dashboard"]) as job:
        table = job.table("w", rows=4, dim=2, rule=perdure.Add())
        shown = job.dashboard()
        with urlopen(shown.url.partition("#")[0], timeout=60) as answer:
            assert "frame-ancestors http://127.0.0.1:*" in answer.headers["Content-Security-Policy"]
        assert "<script>" in shown._repr_html_()
        job.run(lambda _: table.inc([0], [[1, 1]]))
    with pytest.raises(perdure.UsageError, match="no dashboard"):
        job.dashboard()
