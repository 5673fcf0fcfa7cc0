"""Chats: ids of templates are those of transformers; a template reaches nothing; what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from streamgen.model.frontend import default_checkpoint
from streamgen.text.chat import rendered
from streamgen.text.tokenizer import Tokenizer
from streamgen.text.tokenizer_files import load_tokenizer
from tests.unit.text.vocabularies import family

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is <the> sea?\n"},
    {"role": "assistant", "content": "  Water. "},
    {"role": "user", "content": "And 'the' \"sky\"? é 👍"},
]
# As the checkpoints of these families have them, but shorter.
TEMPLATES = {
    "smollm-2": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' +
 message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "llama-2": """{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + (system if loop.first and system is defined else '') }}
{{- message['content'].strip() }} [/INST]
    {%- else %}{% generation %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}""",
    "qwen": """{%- set ns = namespace(last=none, tools=tools is none) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and ns.tools %}{% set ns.last = message.content %}{% break %}{% endif %}
{%- endfor %}
{{- {"messages": messages, "of": strftime_now("%"), "é": 1.5} | tojson }}
{{- dict(a=ns.last) | tojson(indent=2) }}<|im_end|>""",
    "gemma": """{{ bos_token }}{% for message in messages if message['role'] != 'system' %}
<start_of_turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{{ message['content'] | trim }}<end_of_turn>
{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
}


def with_template(place: Path, name: str, template: Any, file: bool = False) -> Path:
    """A folder of a family, with a template in one of the places that it may have."""
    folder = family(name).folder(place)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    if file:
        (folder / "chat_template.jinja").write_text(template)
        template = "{{ 'another' }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return folder


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("file", [False, True])
def test_ids_are_those_of_transformers(tmp_path: Path, name: str, file: bool) -> None:
    """From folders with a file or a field, from what we write of them, and from GGUF files."""
    template = TEMPLATES[name]
    folder = with_template(tmp_path / "chat", name, template, file)
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    gguf = load_tokenizer(family(name).gguf(tmp_path / "m.gguf", chat_template=template))
    (tmp_path / "again").mkdir()
    ours.write(tmp_path / "again")
    for chat in (CHAT, CHAT[1:], CHAT[3:]):
        ids = theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        for tokenizer in (ours, gguf, load_tokenizer(tmp_path / "again")):
            assert tokenizer.chat(chat) == ids
    assert AutoTokenizer.from_pretrained(tmp_path / "again").chat_template == template


SEVERAL = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ 1 + 1 }}"}]


def test_several_templates(tmp_path: Path) -> None:
    """The default one is taken unless another is named; what is written has all of them."""
    ours = load_tokenizer(with_template(tmp_path / "chat", "qwen", SEVERAL))
    (tmp_path / "again").mkdir()
    ours.write(tmp_path / "again")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "again")
    for tokenizer in (ours, load_tokenizer(tmp_path / "again")):
        for name in (None, "default", "tool_use"):
            ids = theirs.apply_chat_template(CHAT, chat_template=name, return_dict=False)
            assert tokenizer.chat(CHAT, template=name) == ids
    named = {"chat_template": None, "chat_template.tool_use": "tools", "chat_templates": ["tool_use"]}
    gguf = load_tokenizer(family("qwen").gguf(tmp_path / "m.gguf", **named))
    assert gguf.chat(CHAT, template="tool_use") == ours.encode("tools", whole=False)


def test_several_templates_and_no_default(tmp_path: Path) -> None:
    """As transformers refuses it: with the names."""
    ours = load_tokenizer(with_template(tmp_path / "none", "qwen", SEVERAL[:1]))
    for name, missing in ((None, "none is called default"), ("rag", "none is called 'rag'")):
        with pytest.raises(ValueError) as error:
            ours.chat(CHAT, template=name)
        assert str(error.value) == (
            f"the tokenizer has the chat templates 'tool_use', {missing}; tokenizer.chat(messages, "
            "template=NAME) gives the ids of a chat by one of these"
        )


def test_files_win_over_the_field(tmp_path: Path) -> None:
    """Those of additional_chat_templates, too; a name is given only once."""
    folder = with_template(tmp_path / "chat", "qwen", "{{ 'field' }}")
    (folder / "additional_chat_templates").mkdir()
    for names in (("tool_use",), ("tool_use", "default")):
        for name in names:
            (folder / "additional_chat_templates" / f"{name}.jinja").write_text(f"{{{{ '{name} file' }}}}")
        assert load_tokenizer(folder).templates == AutoTokenizer.from_pretrained(folder).chat_template
    (folder / "chat_template.jinja").write_text("{{ 'another' }}")
    assert load_tokenizer(folder).templates == AutoTokenizer.from_pretrained(folder).chat_template


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("cls_token", {"cls_token": "<|im_end|>"}),
        ("sep_token", {"sep_token": {"__type": "AddedToken", "content": "<|im_end|>"}}),
        ("mask_token", {"mask_token": "<mask>"}),
        ("image_token", {"image_token": "<|im_end|>"}),
        ("image_token", {"extra_special_tokens": {"image_token": "<|im_end|>"}}),
        ("boi", {"extra_special_tokens": {"boi": "<boi>"}}),
        ("image_token", {"model_specific_special_tokens": {"image_token": "<|im_end|>"}}),
        ("eos_token", {"tokenizer_class": "GPT2Tokenizer", "eos_token": None}),
        ("bos_token", {"tokenizer_class": "GPT2Tokenizer"}),
    ],
)
def test_a_template_sees_the_names_of_tokens(tmp_path: Path, name: str, settings: Any) -> None:
    """All that transformers gives it, from what is written of them as well."""
    folder = with_template(tmp_path / "chat", "qwen", f"a{{{{ {name} }}}}b")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    ids = AutoTokenizer.from_pretrained(folder).apply_chat_template(CHAT, return_dict=False)
    ours = load_tokenizer(folder)
    (tmp_path / "again").mkdir()
    ours.write(tmp_path / "again")
    assert ours.chat(CHAT) == load_tokenizer(tmp_path / "again").chat(CHAT) == ids


def test_fields_of_a_message_that_are_none_are_left_out(tmp_path: Path) -> None:
    folder = with_template(tmp_path / "chat", "qwen", "{{ messages[0] | tojson }}")
    chat: Any = [{"role": "user", "content": "a", "tool_calls": None}]
    ids = AutoTokenizer.from_pretrained(folder).apply_chat_template(chat, return_dict=False)
    assert load_tokenizer(folder).chat(chat) == ids


def test_the_template_of_a_real_checkpoint() -> None:
    tokenizer = load_tokenizer(default_checkpoint())
    text = tokenizer.decode(tokenizer.chat(CHAT))
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is <the> sea?\n")
    assert text.endswith("👍<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.chat(CHAT).count(tokenizer.id_of("<|im_start|>")) == 5


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ messages.__class__.__name__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ (messages | attr('__class__')).__name__ }}",
        "{{ namespace(_Namespace__attrs=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ '{0.__class__}'.format(1).x.y }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ range(1000000) }}",
        "{{ open('/etc/passwd') }}",
        "{{ 1 / 0 }}",
        "{{ messages[7].content.strip() }}",
        "{{ raise_exception('only users') }}",
    ],
)
def test_a_template_reaches_nothing(template: str) -> None:
    chat = [dict(message) for message in CHAT]
    with pytest.raises(ValueError, match=r"^the chat template: "):
        rendered(template, chat, {})
    assert chat == CHAT


def test_what_templates_and_chats_are_refused(tmp_path: Path) -> None:
    def refused(messages: Any, template: str = "{{ messages }}") -> str:
        with pytest.raises(ValueError) as error:
            rendered(template, messages, {})
        return str(error.value)

    whole = 'a chat is a list of at least one message: [{"role": "user", "content": "..."}]'
    assert refused("hello") == refused([]) == refused({"role": "user", "content": "a"}) == whole
    assert refused(["a"]) == 'messages[0] is a str; "role" and "content" are needed'
    assert refused([CHAT[0], {"role": "user"}]) == 'messages[1]["content"] is None; a text is needed'
    assert refused([{**CHAT[0], "tools": {1j}}]).startswith("a message cannot be written as JSON: ")
    assert refused(CHAT, "a\n{% endif %}").startswith("line 2 of the chat template: Encountered unknown tag")
    assert refused(CHAT, "{{ raise_exception('no') }}") == "the chat template: no"
    none: Tokenizer = load_tokenizer(family("qwen").folder(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"^the tokenizer has no chat template; give a text$"):
        none.chat(CHAT)
