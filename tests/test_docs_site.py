"""The documentation is built as a site without a warning, and shows what the public functions say of themselves."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvmconvgrad as cg

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built pages."""
    for name in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(name, reason='Sphinx is not installed (pip install -e ".[docs]")')
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return out


@pytest.mark.slow
def test_every_page_is_built(site: Path) -> None:
    pages = {path.stem for path in DOCS.glob("*.md")}
    assert len(pages) > 12
    assert pages <= {path.stem for path in site.glob("*.html")}


@pytest.mark.slow
def test_the_reference_has_the_public_functions(site: Path) -> None:
    shown = set(re.findall(r'id="tvmconvgrad\.(\w+)"', (site / "api.html").read_text(encoding="utf-8")))
    aliases = {name for name in cg.__all__ if "Backward" in name}
    assert set(cg.__all__) - aliases - {"__version__"} == shown - {"layers"}


def test_every_page_is_in_the_sites_table_of_contents() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or re.search(rf"(^|<){page.stem}>?$", index, re.MULTILINE), page.name
