"""Templates come with the weights, from anywhere: they must neither reach Python nor keep the server busy."""

import gc
from types import FunctionType, ModuleType
from typing import Any

import pytest

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.prompt.bounded_render import CHEAP_WORK, compile_template, full_budget, render_bounded
from penstock.prompt.template_meter import MAX_WORK, BudgetExceeded, WorkMeter

HI = [{"role": "user", "content": "hi"}]
BIG = "{% set big = [0] * 5000000 %}"
# Two things of a few hundred numbers, which have more than can be counted if they are looked at one by one.
DEEP = (
    "{% set ns = namespace(x=[0] * 10, y=[0] * 10) %}"
    "{% for i in range(20) %}{% set ns.x = [ns.x] * 10 %}{% set ns.y = [ns.y] * 10 %}{% endfor %}"
)
TUPLES = "{% set ns = namespace(x=(1, 2)) %}{% for i in range(40) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}"
MANY = "{% for a in range(99999) %}"
X = "x" * 100_000
TEXT = "{% set text = 'a' * 100000 %}"


def render(source: str, units: int = CHEAP_WORK, **variables: Any) -> str:
    """Here and now, as the event loop does it."""
    return render_bounded(compile_template(source), {"messages": HI, **variables}, units)


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
        text = render(source)
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
        "{{ __meter__.charge(-10**15) }}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        MANY + "{{ a " + "- a " * 80 + "}}{% endfor %}",
        MANY + "{% if a.b %}{% endif %}" * 2000 + "{% endfor %}",
        MANY + X + "{% endfor %}",
        "{% macro m(a) %}" + "{% if a.b %}{% endif %}" * 2000 + "{% endmacro %}" + MANY + "{{ m(a) }}{% endfor %}",
        "{% macro m() %}{{ caller() }}{% endmacro %}" + MANY + "{% call m() %}" + X + "{% endcall %}{% endfor %}",
        "{% block b %}" + X + "{% endblock %}" + MANY + "{{ self.b() }}{% endfor %}",
        "{% for a in [[1]] recursive %}{% for i in range(99999) %}{% endfor %}{{ loop([a]) }}{% endfor %}",
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
        DEEP + "{{ [{'a': ns.x}, {'a': ns.y}] | map(attribute='a') | sort }}",
        DEEP + "{{ [ns.x].index(ns.y) }}",
        DEEP + "{{ [ns.x].count(ns.y) }}",
        DEEP + "{{ {'a': ns.x}.items() == {'a': ns.y}.items() }}",
        DEEP + "{{ {'a': ns.x}.values() }}",
        DEEP + "{{ ns }}",
        DEEP + "{{ 'a' | replace(ns.x, 'b') }}",
        DEEP + "{{ 'a'.replace(ns.x | string, 'b') }}",
        DEEP + "{{ raise_exception(ns.x) }}",
        DEEP + "{{ {}[ns.x].y }}",
        DEEP + "{% for i in [1, 2] %}{{ loop.changed(ns.x) }}{{ loop.changed(ns.y) }}{% endfor %}",
        DEEP + "{% set ns.alters_data = true %}{{ ns() }}",
        TUPLES + "{{ {ns.x: 1} }}",
        TUPLES + "{{ {}[ns.x] }}",
        TUPLES + "{{ {}.get(ns.x) }}",
        TUPLES + "{{ dict([[ns.x, 1]]) }}",
        TUPLES + "{{ [ns.x] | unique | list }}",
        TUPLES + "{{ ns.x is filter }}",
        "{% set ns = namespace(x=()) %}{% for i in range(3000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}",
        "{% for i in range(99999) %}{{ 'a' in range(99999) }}{% endfor %}",
        "{% for i in range(99999) %}{{ 'a' is in range(99999) }}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | reject | list %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | select('string') | first %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = range(99999) | map(attribute='x') | list %}{% endfor %}",
        TEXT + "{% for i in range(99999) %}{{ text.count('b') }}{% endfor %}",
        TEXT + "{% for i in range(99999) %}{{ text.isspace() }}{% endfor %}",
        TEXT + "{% set part = 'b' + text[:50000] %}{% for i in range(50) %}{{ text.rfind(part) }}{% endfor %}",
        TEXT
        + "{% set part = 'b' + text[:50000] %}{% for i in range(50) %}{{ text.rsplit(part) | length }}{% endfor %}",
        TEXT + "{% set part = ('b' * 50000) + 'a' %}{{ text.strip(part) }}",
        TEXT + "{% set part = ('b' * 50000) + 'a' %}{{ text | trim(part) }}",
        "{% set a, b = 'a' * 2400, 'a' * 1200 + 'b' %}{% for i in range(2000) %}{% if b in a %}{% endif %}{% endfor %}",
        "{% set a, b = 'a' * 2400, 'a' * 1200 + 'b' %}{% for i in range(2000) %}{{ a.find(b) }}{% endfor %}",
        "{{ ('{0}' * 10000).format('a' * 10000) }}",
        "{{ ('{a}' * 10000).format_map({'a': 'a' * 10000}) }}",
        "{{ ('%(a)s' * 10000) % {'a': 'a' * 10000} }}",
        "{{ ('%(a)9999d' * 10000) % {'a': 1} }}",
        "{{ ('{0:9999}' * 10000).format(1) }}",
        "{{ ([1] * 5000) | tojson(separators=('a' * 100000, 'b')) }}",
        "{{ (['a'] * 5000) | join('b' * 100000) }}",
        "{{ ('b' * 100000).join(['a'] * 5000) }}",
        "{{ (('a' * 1000) | safe).replace('a', 'b' * 100000) }}",
        "{{ ('a' | safe).ljust(99999999999) }}",
        "{{ (('<!---->' * 10000) | safe).striptags() }}",
        "{% autoescape true %}{% set x %}a{% endset %}{{ x.ljust(99999999999) }}{% endautoescape %}",
        "{{ ('ü' * 100000).encode('punycode') }}",
        "{{ (1).to_bytes(99999999999) }}",
        "{{ {}.fromkeys(range(99999)) | length }}{{ {}.fromkeys(range(99999)) | length }}",
        "{{ ('f' * 100000) | int(0, 16) // 3 }}",
        "{{ strftime_now('%9999c' * 1000) }}",
        "{{ 0x" + "f" * 100_000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{% set ns = namespace(x=0) %}{% set ns.x = ns %}{{ ns }}",
        "{{ dict(*[range(99999)] * 9) }}",
        "{% macro m() %}{{ varargs | length }}{% endmacro %}" + MANY + "{{ m(*range(99999)) }}{% endfor %}",
    ],
)
def test_a_template_that_wants_too_much_ends_in_an_error(source: str) -> None:
    with pytest.raises((InvalidRequest, ModelInvalid)):
        render(source)


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
        compile_template(source)


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
    assert render(source) == text


def test_long_messages_are_no_work_of_the_template() -> None:
    source = "{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim + '\n' }}{% endfor %}"
    long = "word " * 2_000_000
    variables = {"messages": [{"role": "user", "content": long}]}
    assert render_bounded(compile_template(source), variables, full_budget(variables)) == f"<user>{long.strip()}\n"


def test_work_is_counted_per_rendering() -> None:
    template = compile_template(f"{{% for i in range({MAX_WORK // 200}) %}}{{% endfor %}}")
    for _ in range(25):
        assert render_bounded(template, {"messages": HI}, MAX_WORK // 20) == ""
    with pytest.raises(InvalidRequest) as caught:
        render_bounded(template, {"messages": HI}, MAX_WORK // 400)
    assert isinstance(caught.value.__cause__, BudgetExceeded)


@pytest.mark.parametrize("name", ["__meter__", "meter", "METER", "_meter", "work", "self.meter", "loop.meter"])
def test_no_name_in_a_template_stands_for_the_meter(name: str) -> None:
    with pytest.raises(InvalidRequest):
        render("{% for i in [1] %}{{ " + name + ".charge(-1) }}{% endfor %}")


def test_no_object_of_a_template_refers_to_the_meter() -> None:
    """Whatever a template can name, with all that is reachable from it, underscores and all."""
    seen: dict[int, object] = {}

    def look(*found: object) -> str:
        waiting: list[object] = list(found)
        while waiting:
            value = waiting.pop()
            if id(value) not in seen and not isinstance(value, type | ModuleType):
                seen[id(value)] = value
                # Of a function what it has closed over, not the module it is of.
                waiting += value.__closure__ or () if isinstance(value, FunctionType) else gc.get_referents(value)
        return ""

    source = (
        "{% macro m() %}{{ caller() }}{% endmacro %}{% block b %}{% endblock %}{% set ns = namespace(x=1) %}"
        "{% for i in [1] recursive %}{% call m() %}"
        "{{ look(self, self.b, loop, ns, m, caller, messages, range, dict, cycler(1), joiner(), nothing) }}"
        "{% endcall %}{% endfor %}"
    )
    assert render(source, look=look) == ""
    assert len(seen) > 1000  # the environment and all its filters
    assert not any(isinstance(value, WorkMeter) for value in seen.values())


def test_a_charge_is_never_negative() -> None:
    meter = WorkMeter(10)
    meter.charge(-(10**15))
    meter.charge_indentation(10, -(10**15))
    assert meter.left == 10
    with pytest.raises(BudgetExceeded):
        meter.charge(11)
    with pytest.raises(BudgetExceeded):  # and one that was caught changes nothing
        meter.charge(-100)


@pytest.mark.parametrize("kind", [MemoryError, RecursionError, RuntimeError, OSError, AssertionError])
def test_whatever_is_raised_in_there_is_an_error_answer(kind: type[Exception]) -> None:
    def fail() -> str:
        raise kind

    with pytest.raises(InvalidRequest, match="the chat template") as caught:
        render("{{ fail() }}", fail=fail)
    assert caught.value.param == "messages"


def test_what_a_template_says_of_a_failure_is_cut() -> None:
    with pytest.raises(InvalidRequest, match="rejects these messages: aaa") as caught:
        render("{{ raise_exception('a' * 100000) }}")
    assert len(caught.value.message) < 1000
