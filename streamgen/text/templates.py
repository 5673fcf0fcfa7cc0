"""The chat templates of a checkpoint, by name.

In a folder the files have priority: chat_template.jinja, which is named default, and those of
additional_chat_templates. Without these files, the field chat_template of tokenizer_config.json is read. A
GGUF file has tokenizer.chat_template, which is named default, and tokenizer.chat_template.NAME.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamgen.text.folder_files import SETTINGS
from streamgen.text.known import says_nothing, shown

DEFAULT = "default"
FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
KEY = "tokenizer.chat_template"
LIST = "tokenizer.chat_templates"  # the names of those that are not called default


def templates_of_folder(folder: Path, field: Any) -> dict[str, str]:
    """The templates of a folder. field: chat_template of tokenizer_config.json. ValueError if it holds no
    templates."""
    others = sorted(path for path in (folder / FOLDER).glob("*.jinja") if path.is_file())
    files = {path.name.removesuffix(".jinja"): path for path in others}
    if (folder / FILE).is_file():
        files.setdefault(DEFAULT, folder / FILE)
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    if isinstance(field, list):
        if not all(isinstance(part, Mapping) and {"name", "template"} <= part.keys() for part in field):
            raise ValueError(
                f"chat_template of {SETTINGS} is {shown(field)}; each needs a name and a template"
            )
        field = {part["name"]: part.get("template") for part in field}
    if says_nothing(field) and field != "":
        return {}
    templates = field if isinstance(field, Mapping) else {DEFAULT: field}
    if not all(isinstance(text, str) for part in templates.items() for text in part):
        raise ValueError(
            f"chat_template of {SETTINGS} is {shown(field)}; a text is needed, or texts by names"
        )
    return dict(templates)


def names_template(key: str) -> bool:
    """Whether a field of GGUF belongs to the templates."""
    return key in (KEY, LIST) or key.startswith(f"{KEY}.")


def templates_of_metadata(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Raise ValueError for a template that is not a text."""
    templates: dict[str, str] = {}
    for key, value in metadata.items():
        if names_template(key) and key != LIST and value is not None:
            if not isinstance(value, str):
                raise ValueError(f"the field {key} is {shown(value)}; a text is needed")
            templates[key.removeprefix(KEY).removeprefix(".") or DEFAULT] = value
    return templates


def chosen(templates: Mapping[str, str], name: str | None) -> str:
    """The template with a name, or the default template; ValueError if there is none."""
    if not templates:
        raise ValueError("the tokenizer has no chat template; give a text")
    if (name or DEFAULT) in templates:
        return templates[name or DEFAULT]
    missing = "none is called default" if name is None else f"none is called {name!r}"
    raise ValueError(
        f"the tokenizer has the chat templates {', '.join(map(repr, sorted(templates)))}, {missing}; "
        "tokenizer.chat(messages, template=NAME) gives the ids of a chat by one of these"
    )
