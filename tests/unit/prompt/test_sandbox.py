"""Templates come with the weights, from anywhere: they must neither reach Python nor keep the server busy."""

import pytest

from penstock.errors import InvalidRequest, ModelInvalid
from penstock.prompt import sandbox
from penstock.prompt.template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


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
    ],
)
def test_a_template_that_wants_too_much_ends_in_an_error(source: str) -> None:
    with pytest.raises((InvalidRequest, ModelInvalid)):
        ChatTemplate(source, {}).render(HI)


def test_a_template_that_does_not_compile_is_the_models_fault() -> None:
    with pytest.raises(ModelInvalid, match="does not compile"):
        ChatTemplate("{% for %}", {})


def test_work_is_counted_per_rendering() -> None:
    turns = sandbox.MAX_WORK // 20
    template = ChatTemplate(f"{{% for i in range({turns}) %}}{{% endfor %}}", {})
    for _ in range(25):
        assert template.render(HI) == ""
