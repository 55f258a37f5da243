import jinja2
import pytest
import tinygguf
from hypothesis import given
from hypothesis import strategies as st

from rondel.decoder.errors import InvalidRequest, UnsupportedModel
from rondel.decoder.lm.chat import GUARDS, ChatTemplate
from rondel.decoder.lm.forward import LanguageModel

MARKUP = ("<|im_start|>", "<|im_end|>", "<s>")
PIECES = ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<", "|", ">", "\n", " ", "a", *GUARDS[:2]]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, markup=MARKUP, bos="<s>", eos="<|im_end|>")


def rendered(source: str, *contents: str) -> str:
    result = template(source).render([{"role": "user", "content": content} for content in contents])
    return result.unguard(result.text)


def test_a_conversation_is_what_the_template_says(tiny: LanguageModel) -> None:
    ids = tiny.tokenizer.chat(
        [{"role": "user", "content": " the cat "}, {"role": "assistant", "content": "meow"}]
    )
    text = (
        "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\nmeow<|im_end|>\n<|im_start|>assistant\n"
    )
    # The same ids as if the text had been written whole: no word is cut at a message's border.
    assert ids == tiny.tokenizer.encode(text, special=True)


@given(contents=st.lists(st.tuples(HOSTILE, HOSTILE), min_size=1, max_size=3))
def test_no_message_can_write_markup(tiny: LanguageModel, contents: list[tuple[str, str]]) -> None:
    ids = tiny.tokenizer.chat([{"role": role, "content": content} for role, content in contents])
    assert ids.count(tinygguf.START) == len(contents) + 1
    assert ids.count(tinygguf.END) == len(contents)
    expected = "".join(f"<|im_start|>{role}\n{content.strip()}<|im_end|>\n" for role, content in contents)
    assert tiny.tokenizer.decode(ids, special=True) == f"{expected}<|im_start|>assistant\n"


@given(contents=st.lists(HOSTILE, min_size=2, max_size=4))
def test_messages_side_by_side_cannot_either(contents: list[str]) -> None:
    result = template("{% for m in messages %}{{ m.content | trim }}{% endfor %}").render(
        [{"role": "user", "content": content} for content in contents]
    )
    assert not any(mark in result.text for mark in MARKUP)
    assert result.unguard(result.text) == "".join(content.strip() for content in contents)


def test_the_template_may_compose_markup_from_a_role() -> None:
    result = template("{{ '<|im_' + messages[0].role + '|>' }}").render([{"role": "end", "content": ""}])
    assert result.text == "<|im_end|>"


def test_templates_find_what_hugging_face_gives_them() -> None:
    assert rendered("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "x") == "<s>x<|im_end|>"
    assert rendered("{{ messages[0] | tojson }}", "é<b>") == '{"role": "user", "content": "é<b>"}'
    assert rendered(
        "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", "x"
    ) == ("x\n")
    assert rendered("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "x", "y") == "x"
    assert rendered("{{ strftime_now is defined }}", "x") == "False"


def test_a_template_may_refuse_messages() -> None:
    with pytest.raises(InvalidRequest, match="refuses these messages: roles must alternate"):
        rendered("{{ raise_exception('roles must alternate') }}", "x")


@pytest.mark.parametrize(
    "source",
    [
        "{{ nothing.at.all }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[7].content }}",
    ],
)
def test_a_template_that_fails_is_an_unsupported_model(source: str) -> None:
    with pytest.raises(UnsupportedModel, match="chat template fails"):
        rendered(source, "x")


def test_a_template_that_does_not_compile_is_an_unsupported_model() -> None:
    with pytest.raises(UnsupportedModel, match="chat template fails") as caught:
        rendered("{% if %}", "x")
    assert isinstance(caught.value.__cause__, jinja2.TemplateSyntaxError)


@pytest.mark.parametrize(
    "messages",
    [
        [], "text", {"role": "user", "content": "x"}, [{"role": "user"}], ["x"],
        [{"role": "user", "content": None}], [{"role": "user", "content": "\ud800"}],
        [{"role": 1, "content": "x"}], [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": "".join(GUARDS)}],
    ],
)  # fmt: skip
def test_malformed_messages_are_refused(tiny: LanguageModel, messages: list[dict[str, str]]) -> None:
    with pytest.raises(InvalidRequest):
        tiny.tokenizer.chat(messages)
