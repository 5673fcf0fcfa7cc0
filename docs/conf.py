"""The site: Sphinx with MyST, for Markdown. `make docs` builds it, with pdoc's reference beside."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pictures

project = "streamgen"
copyright = "the authors of streamgen, Apache-2.0"
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 3  # as forges make them: links of one text work in both
html_theme = "furo"
html_title = "streamgen"
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "top_of_page_buttons": []
}  # the sources are in the repository
html_copy_source = False
# What the code of documents is in; all else that is indented (trees, commands) is no language.
highlight_language = "text"
copybutton_prompt_text = "$ "  # of sessions, commands alone are copied
suppress_warnings = [
    "myst.xref_missing",  # links to files of the repository; tests/house/test_docs.py follows those
]

for document in ("numbers.md", "compare.md"):
    pictures.draw(
        Path(__file__).parent / document, Path(__file__).parent / "_static"
    )
html_static_path = ["_static"]
# The theme lacks parts for keyboard users and screen readers; tests/external/browser/test_site_in_browser.py
# holds these.
templates_path = ["_templates"]
html_js_files = ["keyboard.js"]
html_css_files = ["keyboard.css"]
