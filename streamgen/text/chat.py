"""Chats as texts, by the Jinja template of a checkpoint.

A template is a program from others, so it runs in Jinja's immutable sandbox. It sees the messages, as plain
JSON, and the texts of tokens; it changes nothing and reaches nothing else. Templates get what transformers
gives them: blocks that take their line, loops with `break`, `raise_exception`, `strftime_now`, `tojson`, and
the mark {% generation %} around answers, which has no effect here.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any


def rendered(template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
    """The text of a chat up to the beginning of the answer.

    messages: each with "role" and "content". names: texts of tokens that a template may use, by name. Raises
    ValueError for messages of another form, for messages that the template refuses, and for a template that
    fails.
    """
    import jinja2  # 0.1 s, which only chats need

    copies = _checked(messages)
    try:
        return (
            _environment()
            .from_string(template)
            .render(
                {**names, "messages": copies, "add_generation_prompt": True, "tools": None, "documents": None}
            )
        )
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno} of the chat template: {error.message}") from error
    except Exception as error:  # a template may do anything wrong that an expression can
        raise ValueError(f"the chat template: {error}") from error


def _checked(messages: Sequence[Mapping[str, str]]) -> Any:
    """A copy of messages in plain JSON; a template sees nothing else. As in transformers, fields that are
    None are left out, because templates that do not know them fail."""
    if isinstance(messages, (str, Mapping)) or not messages:
        raise ValueError('a chat is a list of at least one message: [{"role": "user", "content": "..."}]')
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(
                f'messages[{index}] is a {type(message).__name__}; "role" and "content" are needed'
            )
        for field in ("role", "content"):
            if not isinstance(message.get(field), str):
                raise ValueError(f'messages[{index}]["{field}"] is {message.get(field)!r}; a text is needed')
    try:
        stated = [{k: field for k, field in message.items() if field is not None} for message in messages]
        return json.loads(json.dumps(stated))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a message cannot be written as JSON: {error}") from error


def _environment() -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
    from jinja2.utils import Namespace

    class GenerationTag(Extension):
        """{% generation %} ... {% endgeneration %} is replaced by its content."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Plain(Namespace):
        """Values that a template keeps during a loop. Names with _ are refused, because Python uses them
        itself."""

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise SecurityError(f"a name of a namespace is {name}; it must not begin with _")
            super().__setitem__(name, value)

    def namespace(*given: Any, **values: Any) -> Plain:
        names = Plain()
        for name, value in dict(*given, **values).items():
            names[name] = value
        return names

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, **choices: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **choices)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["namespace"] = namespace
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
