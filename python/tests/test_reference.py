"""The reference pages of the Python package are generated from docstrings by `python tests/test_reference.py`."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "perdure"
GUIDE = Path(__file__).parents[2] / "docs" / "guide"

#: For each page its title, its guide and its modules. Sources are parsed, not imported, since some need PyTorch.
PAGES = {
    "python-reference.md": ("Python reference", "python.md", ("job", "rules", "run", "progress", "errors")),
    "pytorch-reference.md": ("PyTorch reference", "pytorch.md", ("_parallel", "torch", "sampler")),
    "trainers-reference.md": (
        "Reference of trainers, Ray Train and tracking",
        "pytorch-trainers.md",
        ("hf", "lightning", "torchtitan", "ray", "_track"),
    ),
}
TITLES = {
    "job": "Jobs and tables",
    "rules": "Update rules",
    "run": "Recorded runs",
    "progress": "Progress",
    "errors": "Errors",
    "_parallel": "`perdure.DataParallel`",
    "torch": "`perdure.torch`: ServerOptimizer and DiLoCo",
    "sampler": "`perdure.Sampler`",
    "hf": "`perdure.hf`: Hugging Face's Trainer",
    "lightning": "`perdure.lightning`",
    "torchtitan": "`perdure.torchtitan`",
    "ray": "`perdure.ray`: Ray Train",
    "_track": "Tracking",
}


def page(name: str) -> str:
    """Return the whole page."""
    title, guide, modules = PAGES[name]
    parts = [
        f"# {title}\n\nWhat does each class and function do? This page is generated from docstrings; "
        f"start with the [guide]({guide}).\n"
    ]
    for module in modules:
        lines = (SOURCE / f"{module}.py").read_text().splitlines()
        body = ast.parse("\n".join(lines)).body
        bases = {n.name: n for n in body if isinstance(n, ast.ClassDef) and n.name.startswith("_")}
        shown = [p for node in body for p in described(node, lines, "", bases)]
        parts.append(f"## {TITLES[module]}\n\n" + "\n".join(shown) + ("" if shown[-1].endswith("\n") else "\n"))
    return "\n".join(parts).rstrip() + "\n"


def described(node: ast.AST, lines: list[str], of: str, bases: dict[str, ast.ClassDef]) -> list[str]:
    """Describe a public class with its methods, or a public function. Without a docstring the result is empty.

    Methods of a private base class are those of the class.
    """
    if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
        return []
    text = ast.get_docstring(node)
    if text is None or node.name.startswith("on_") or node.name in ("setup", "spec"):  # only libraries call these
        return []
    if isinstance(node, ast.FunctionDef):
        said = signature(node, of)
        summary, _, rest = prose(text).partition("\n")
        begin = f"{code(said)}\n{summary}" if "\n" in said else wrapped(f"**`{said}`** – {summary}")
        return [begin + (f"\n{rest}\n" if rest else "\n")]
    if any(ast.unparse(base) in ("Exception", "PerdureError", "Stopped") for base in node.bases):
        return [wrapped(f"- `{node.name}`: {prose(text)}")]
    own = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    for base in (bases[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in bases):
        known = {n.name for n in own}
        own += [n for n in base.body if isinstance(n, ast.FunctionDef) and n.name not in known | {"__init__"}]
    make = next((n for n in own if n.name == "__init__"), None)
    shown = f"### {node.name}\n"
    if make is not None and node.name not in ("Table", "Job"):
        shown += code(signature(make, "").replace("__init__", node.name, 1).partition(" -> ")[0]) + "\n"
    fields = [
        n for n in node.body if isinstance(n, ast.AnnAssign) and not ast.unparse(n.annotation).startswith("Class")
    ]
    if fields:
        shown += wrapped(", ".join(f"`{ast.unparse(n)}`" for n in fields)) + "\n\n"
    shown += prose(text) + "\n" + attributes(node, lines)
    return [shown, *(p for n in own for p in described(n, lines, "", bases))]


def signature(node: ast.FunctionDef, of: str) -> str:
    """Return a function's signature, with one parameter per line if one line would be longer than 100 characters."""
    given = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    if any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list):
        return f"{node.name}{returns}"
    line = f"{of}{node.name}({given}){returns}"
    if len(line) <= 100:
        return line
    parts = re.split(r", (?=[^\[\]()]*(?:[\[(][^\[\]()]*(?:[\[(][^\[\]()]*[\])][^\[\]()]*)*[\])][^\[\]()]*)*$)", given)
    return f"{of}{node.name}(\n" + "".join(f"    {p},\n" for p in parts) + f"){returns}"


def attributes(node: ast.ClassDef, lines: list[str]) -> str:
    """List a class's attributes that have a comment starting with ``#:``."""
    found = []
    for line in lines[node.lineno - 1 : node.end_lineno]:
        said = re.match(r"\s+self\.(\w+)(?:: ([^=]+?))? = .*#: (.*)", line)
        if said is not None:
            found.append(f"- `{said[1]}`: {prose(said[3])}")
    return "\n" + "\n".join(found) + "\n" if found else ""


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def prose(text: str) -> str:
    """Return a Google-style docstring as Markdown."""
    shown: list[str] = []
    for part in re.split(r"\n\n(?=\S)", text.replace("``", "`")):
        head, _, body = part.partition("\n")
        body = textwrap.dedent(body)
        items: list[str] = []
        if head in ("Args:", "Attributes:"):
            items = [wrapped(f"- `{name}`: {said}") for name, said in entries(body)]
        elif head == "Raises:":
            items = [wrapped(f"- raises `{name}`: {said}") for name, said in entries(body)]
        elif head == "Returns:":
            items = [wrapped(f"- returns: {' '.join(body.split())}")]
        elif head == "Example:":
            part = code(re.sub(r"^(>>>|\.\.\.) ?", "", body, flags=re.M))
        if items:
            part = "\n".join(items)
        shown += ["\n" if items else "\n\n", part]  # Markdown needs no blank line before a list
    return "".join(shown[1:])


def entries(section: str) -> list[tuple[str, str]]:
    """Return the entries of a docstring section: each is a name and its description."""
    found = re.findall(r"^(\S+): (.*(?:\n[ \t]+.*)*)", section, re.M)
    assert len(found) == len(re.findall(r"^\S", section, re.M)), f"an entry without a name or colon: {section}"
    return [(name, " ".join(said.split())) for name, said in found]


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="  " if text.startswith("-") else "", break_on_hyphens=False)


@pytest.mark.parametrize("name", PAGES)
def test_reference_is_of_these_docstrings(name: str) -> None:
    assert (GUIDE / name).read_text() == page(name), f"{name} is out of date; run python tests/test_reference.py"


if __name__ == "__main__":
    for name in PAGES:
        (GUIDE / name).write_text(page(name))
