"""Inserts charges into the syntax tree of a chat template before it is compiled.

Every block that may run several times, or not at all, begins with a charge for its size. Values that are written,
compared, sliced or used as a key pass through a filter that charges for them (`sandbox.CHARGE_FILTERS`). The names of
these filters cannot be written in a template.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.visitor import NodeTransformer

from penstock.prompt.template_meter import CHARS_PER_UNIT

WORK, WRITE, WEIGH, SLICE, CONTAINS = ("work ()", "write ()", "weigh ()", "slice ()", "contains ()")
NODES_PER_UNIT = 4  # an attribute of an object takes about a quarter of a microsecond


class ChargeInserter(NodeTransformer):
    def visit_Template(self, node: nodes.Template) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        if node.test is not None:
            node.test = nodes.Or(_work([node.test]), node.test)  # the charge returns None
        return node

    def visit_If(self, node: nodes.If) -> nodes.Node:
        self.generic_visit(node)
        for body in (node.body, node.else_):
            if body:
                body.insert(0, _charge(body))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _charge(node.body))
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [part if isinstance(part, nodes.TemplateData) else _apply(WRITE, part) for part in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _apply(WRITE, *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if any(operand.op in ("in", "notin") for operand in node.ops):
            if len(node.ops) > 1:
                raise TemplateSyntaxError("`in` cannot be chained in chat templates", node.lineno)
            found = _apply(CONTAINS, node.expr, node.ops[0].expr)
            return found if node.ops[0].op == "in" else nodes.Not(found)
        node.expr = _apply(WEIGH, node.expr)
        for operand in node.ops:
            operand.expr = _apply(WEIGH, operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _apply(SLICE, node.node)
        elif not _is_constant(node.arg):  # the key is hashed
            node.arg = _apply(WEIGH, node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        if not _is_constant(node.key):
            node.key = _apply(WEIGH, node.key)
        return node

    def visit_ScopedEvalContextModifier(self, node: nodes.ScopedEvalContextModifier) -> nodes.Node:
        raise TemplateSyntaxError("autoescape is not supported in chat templates", node.lineno)


def _is_constant(node: nodes.Expr) -> bool:
    return isinstance(node.node if isinstance(node, nodes.Neg) else node, nodes.Const)


def _apply(name: str, value: nodes.Expr, *others: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(others), [], None, None)


def _charge(body: list[nodes.Node]) -> nodes.ExprStmt:
    return nodes.ExprStmt(_work(body))


def _work(body: list[nodes.Node] | list[nodes.Expr]) -> nodes.Filter:
    """A charge for one execution."""
    count = chars = 0
    for node in _inline(body):
        count += 1
        if isinstance(node, nodes.TemplateData):
            chars += len(node.data)
    return _apply(WORK, nodes.Const(1 + count // NODES_PER_UNIT + chars // CHARS_PER_UNIT))


def _inline(body: list[nodes.Node] | list[nodes.Expr]) -> Iterator[nodes.Node]:
    """All nodes except those in blocks with their own charge."""
    waiting: list[nodes.Node] = [*body]
    while waiting:
        node = waiting.pop()
        yield node
        own: tuple[str, ...] = ()
        if isinstance(node, nodes.If):
            own = ("body", "else_")
        elif isinstance(node, nodes.For):
            own = ("body", "test")
        elif isinstance(node, nodes.Macro | nodes.CallBlock | nodes.Block):
            own = ("body",)
        waiting += node.iter_child_nodes(exclude=own)
