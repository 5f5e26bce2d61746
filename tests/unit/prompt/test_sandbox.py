"""Templates come with the weights, from anywhere: they must neither reach Python nor keep the server busy."""

import pytest

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.prompt import sandbox
from penstock.prompt.template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]
BIG = "{% set big = [0] * 5000000 %}"
# Two things of a few hundred numbers, which have more than can be counted if they are looked at one by one.
DEEP = (
    "{% set ns = namespace(x=[0] * 10, y=[0] * 10) %}"
    "{% for i in range(20) %}{% set ns.x = [ns.x] * 10 %}{% set ns.y = [ns.y] * 10 %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ messages.append(1) }}",
        "{% set _ = messages[0].update({'content': 'x'}) %}",
        "{{ ('%s' | attr('__class__')) }}{{ (''|attr('__class__')).mro() }}",
    ],
)
def test_a_template_cannot_reach_python(source: str) -> None:
    try:
        text = ChatTemplate(source, {}).render(HI)
    except InvalidRequest:
        return
    assert text.strip() in ("", "None")  # an undefined, not an object


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% continue %}{% endfor %}{% endfor %}",
        "{% set turn = 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set __meter__ = 1 %}{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n - 1) }}{{ m(n - 1) }}{% endmacro %}{{ m(40) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{{ 'a' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ 9 ** 99999999 }}",
        "{{ 'a'.ljust(99999999999) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '%*d' % (99999999999, 1) }}",
        "{{ '{:99999999999}'.format(1) }}",
        "{{ '%99999999999d' | format(1) }}",
        "{{ 'a' | center(99999999999) }}",
        "{{ 'a\\nb' | indent(99999999999) }}",
        "{{ range(99999999999) | list }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(200) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(200) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(200) %}{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
        "{% set ns = namespace(x=['a']) %}{% for i in range(200) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(200) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
        "{% set x %}{% for i in range(90000) %}{{ 'a' * 1000 }}{% endfor %}{% endset %}{{ x }}",
        BIG + "{% for i in range(50) %}{% if 1 in big %}{% endif %}{% endfor %}",
        BIG + "{% for i in range(50) %}{% set x = big | sum %}{% endfor %}",
        BIG + "{% for i in range(50) %}{% set x = big[:] %}{% endfor %}",
        "{{ ([[0] * 500] * 3000) | sum(start=[]) | length }}",
        "{{ ([[0] * 500] * 3000) | sum(none, []) | length }}",
        "{{ 'a'.encode() * 99999999999 }}",
        "{{ '{0:>{1}}'.format('a', '300000000') }}",
        "{{ ('\t' * 30000).expandtabs(10000) }}",
        "{{ ('a' * 1000).translate({97: 'b' * 100000}) }}",
        "{{ ('\n' * 30000) | indent(10000, blank=true) }}",
        "{{ ('\n' * 30000) | indent('a' * 10000, blank=true) }}",
        "{{ ([1] * 30000) | tojson(indent=10000) }}",
        "{{ ([1] * 30000) | tojson(false, 10000) }}",
        DEEP + "{{ ns.x == ns.y }}",
        DEEP + "{{ ns.x in [ns.y] }}",
        DEEP + "{{ ns.x is ne ns.y }}",
        DEEP + "{{ [ns.x] | select('equalto', ns.y) | list }}",
        DEEP + "{{ [ns.x, ns.y] | max }}",
        DEEP + "{{ [ns.x, ns.y] | sort }}",
    ],
)
def test_a_template_that_wants_too_much_ends_in_an_error(source: str) -> None:
    with pytest.raises((InvalidRequest, ModelInvalid)):
        ChatTemplate(source, {}).render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% if 1 %}" * 200 + "{% endif %}" * 200,
        "{% for i in [1] %}" * 30 + "{% endfor %}" * 30,
    ],
    ids=["wrong", "brackets", "conditions", "loops"],
)
def test_a_template_that_does_not_compile_is_the_models_fault(source: str) -> None:
    with pytest.raises(ModelInvalid, match="does not compile"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '{{{}}}'.format(messages[0].content) }}", "{hi}"),
        ("{{ messages[:1] | length }}{{ 'abc'[::-1] }}", "1cba"),
        ("{{ 'h' in messages[0].content }} {{ 1 < 2 <= 2 != 3 }} {{ 4 not in [1, 2] }}", "True True True"),
        (
            "{{ 3 is divisibleby 3 }} {{ messages is defined }} {{ 'e' is filter }} {{ 2 is gt(1) }}",
            "True True True True",
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ [1, 2] | sum }} {{ [{'n': 2}] | sum('n') }} {{ [3, 1] | sort | join }}", "3 2 13"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
    ],
)
def test_what_templates_need_is_there(source: str, text: str) -> None:
    assert ChatTemplate(source, {}).render(HI) == text


def test_long_messages_are_no_work_of_the_template() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    long = "word " * 2_000_000
    assert ChatTemplate(source, {}).render([{"role": "user", "content": long}]) == f"<user>{long.strip()}\n"


def test_work_is_counted_per_rendering() -> None:
    turns = sandbox.MAX_WORK // 20
    template = ChatTemplate(f"{{% for i in range({turns}) %}}{{% endfor %}}", {})
    for _ in range(25):
        assert template.render(HI) == ""
