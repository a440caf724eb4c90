"""MkDocs hooks: the README is the home page, and links to files outside docs lead to the repository."""

import posixpath
import re

from mkdocs.structure.files import File

FENCE = re.compile(r"^(\s*```\w+)( \w+)$", re.M)  # "sh run" and "sh parse" tell the tests what to do with a block
LIST = re.compile(r"(```.*?^```$)|^(?![-\s])([^\n]+\n)(?=- )", re.M | re.S)  # a block, or a line that a list follows
REPOSITORY = "https://github.com/perdure/perdure/blob/main/"
LINK = re.compile(r"(\]\()([^():#\s]+)((?:#[^()\s]*)?\))")
OUTSIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def on_files(files, config):
    """Add the pages of the repository's root, and the style sheet, to the site."""
    root = posixpath.dirname(config["config_file_path"])
    for name in OUTSIDE:
        page = "index.md" if name == "README.md" else name
        with open(posixpath.join(root, name), encoding="utf-8") as f:
            files.append(File.generated(config, page, content=f.read()))
    with open(posixpath.join(root, "tools/site/site.css"), encoding="utf-8") as f:
        files.append(File.generated(config, "site.css", content=f.read()))
    return files


def on_page_markdown(markdown, page, config, files):
    """Resolve links as a code host does, from the page's place in the repository."""
    place = page.file.src_path
    if place == "index.md":
        place = "README.md"
    if place not in OUTSIDE:
        page.meta["search"] = {"boost": 4 if place.startswith("guide/") else 0.5}  # tasks come first
        place = "docs/" + place

    def resolve(m):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), m[2]))
        if target == "README.md":
            target = "docs/index.md"
        elif target in OUTSIDE:
            target = "docs/" + target
        inside = target.removeprefix("docs/")
        if target.startswith("docs/") and files.get_file_from_path(inside):
            return m[1] + posixpath.relpath(inside, posixpath.dirname(page.file.src_path) or ".") + m[3]
        return m[1] + REPOSITORY + target + m[3]

    markdown = LIST.sub(lambda m: m[1] or m[2] + "\n", FENCE.sub(r"\1", markdown))  # code hosts need no empty line
    return LINK.sub(resolve, markdown)
