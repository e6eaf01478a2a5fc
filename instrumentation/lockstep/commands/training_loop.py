"""The loop in a training script: what it trains, where a step ends, and which loss that has."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeGuard

from lockstep.commands.training_script import (
    Assignment,
    Function,
    Loop,
    TrainingScript,
    calls_in,
    last_name,
    name_of,
)

_OPTIMIZER = re.compile(
    r"((?i:optimi[sz]ers?|optims?|adam\w{0,7}|sgd|rmsprop|lbfgs|adagrad|adadelta|adafactor|muon)"
    r"|(^|[_.])opts?|deepspeed\.initialize)(_?[A-Za-z0-9]{1,2})?$"
)
_MODEL = re.compile(r"(?i:model|net|network|module|policy)\w?$")
_WRAPPER = re.compile(
    r"(DDP|DistributedDataParallel|FSDP|FullyShardedDataParallel|fully_shard|parallelize_module"
    r"|prepare_model|prepare|torch\.compile|deepspeed\.initialize|init_process_group)$"
)
_LOSS = re.compile(r"(?i:loss\w*|\berr\w*)$")
_BOOKKEEPING = {"step", "update", "zero_grad"}
_PARAMETERS = {"parameters", "named_parameters", "configure_optimizers"}
_NO_GRADIENTS = {"no_grad", "inference_mode"}
_STEPS = {"step", "optimizer_step"}
_LAST_PART = "the step tells the loss of its last micro-batch"
_COUNT = re.compile(r"(?i:tokens|samples|size|count|num_|len\()")


class TrainingLoop:
    """The loop in which a script steps its optimizers, or does their work by hand.

    Attributes:
        loops: around the step, from the inside out, in all functions; a turn of the first is a
            step, or one of its micro-batches.
        is_given: whether ``setup`` is the first statement of the function with the loop, which is
            given what it trains.
        calls: the statement with the step, and that with the call of each function around it.
        end: the statement after which the step has ended.
        setup: the statement after which ``models`` and ``optimizers`` have their values.
        other_lines: of steps in other loops.

    Raises:
        ValueError: no loop steps an optimizer, or nothing creates what it trains.
    """

    is_given = False

    def __init__(self, script: TrainingScript) -> None:
        self._script = script
        steps = [call for call in script.calls if self._stepped(call)]
        steps = steps or [call for call in script.calls if last_name(call) == "backward"]
        chains = [chain for call in steps if self._loops(chain := self._chain(call))]
        if not chains:
            where = f"; line {steps[0].lineno} does, which no loop in it runs" if steps else ""
            raise ValueError(f"no loop in it steps an optimizer or runs a backward{where}")
        # Of nested loops the outer one: its turn has the steps of all critics or micro-batches.
        chain = min(reversed(chains), key=lambda chain: len(self._loops(chain)))
        self.loops = self._loops(chain)
        self.calls = chain[: 1 + max(i for i, node in enumerate(chain) if script.loops(node))]
        inner = [chain[0] for chain in chains if self.loops[0] in self._loops(chain)]
        micro_batches = self.loops[0]
        self.other_lines = sorted({c[0].lineno for c in chains if c[0] not in inner})
        self.end = self._end_of_step(chain[0], inner)
        if (
            self.loops[1:]
            and "accum" in ast.unparse(getattr(micro_batches, "iter", self.end)).lower()
        ):
            self.loops, self.end = self.loops[1:], micro_batches
        self._find_setup({self._stepped(call) for call in steps})

    def _loops(self, chain: list[ast.stmt]) -> list[Loop]:
        return [loop for statement in chain for loop in self._script.loops(statement)]

    def _chain(self, call: ast.Call) -> list[ast.stmt]:
        """A step's statement, that which calls its function, and so on outwards."""
        script, statement = self._script, self._script.statement(call)
        around = script.parents[statement]
        if isinstance(around, ast.For) and name_of(around.target) == self._stepped(call) != "":
            statement = around  # for optimizer in optimizers: optimizer.step()
        elif not self._stepped(call) and (loops := script.loops(call)):
            statement = loops[0].body[-1]  # by hand: what follows its backward updates parameters
        chain, scopes = [statement], list[ast.AST]()
        while (scope := script.scope(chain[-1])) not in scopes and scope in script.callers:
            scopes.append(scope)
            caller = max(script.callers[scope], key=lambda call: len(script.loops(call)))
            chain.append(script.statement(caller))
        return chain

    def _stepped(self, call: ast.Call) -> str:
        """Name of the optimizer that a call steps; empty for any other call."""
        if last_name(call) not in _STEPS:
            return ""
        given = (*call.args, *(keyword.value for keyword in call.keywords))
        names = [*map(name_of, given), name_of(call.func).rpartition(".")[0]]
        return next((name for name in names if name and self._is_optimizer(name)), "")

    def _is_optimizer(self, name: str) -> bool:
        values = [value for _, n, value in self._script.assignments if n == name]
        names = [name, *map(self._script.origin, values)]
        return any(map(_OPTIMIZER.search, names)) and not any("ched" in text for text in names)

    def _end_of_step(self, statement: ast.stmt, steps: list[ast.stmt]) -> ast.stmt:
        """The last step with those of other branches, and with the bookkeeping that follows it."""
        script = self._script
        around = [{step, *script.ancestors(step)} for step in steps]
        for block in script.ancestors(statement):
            if block is self.loops[0] or isinstance(block, Function | ast.Module):
                break
            others = [n for n in around if script.parents[block] in n and block not in n]
            branches = {
                n.isdisjoint(block.body) for n in around if block in n and isinstance(block, ast.If)
            }
            if isinstance(block, ast.stmt) and (others or len(branches) > 1):
                statement = block
        lists = [b for b in vars(script.parents[statement]).values() if isinstance(b, list)]
        siblings = next(block for block in lists if statement in block)
        for sibling in siblings[siblings.index(statement) + 1 :]:
            call = getattr(sibling, "value", None)
            if not isinstance(call, ast.Call) or call.args or last_name(call) not in _BOOKKEEPING:
                break
            statement = sibling
        return statement

    def _find_setup(self, stepped: set[str]) -> None:
        """Finds what is trained, in the function that creates or keeps the optimizers."""
        script, outermost = self._script, self.loops[-1]
        created = [
            (statement, name)
            for statement, name, value in script.assignments
            if self._is_optimizer(name) and (name_of(value) or calls_in(value))
        ]
        nearest = [statement for statement, name in created if name in stepped]
        nearest = nearest or [statement for statement, _ in created] or [self.calls[-1]]
        own_scope = script.scope(self.calls[0])
        inside = {script.scope(call) for call in self.calls} - {script.scope(outermost)}
        scopes = [script.scope(s) for s in nearest if script.scope(s) not in inside]
        home = own_scope if own_scope in scopes or not scopes else scopes[-1]

        def is_before(statement: ast.stmt) -> bool:
            is_apart = script.scope(outermost) is not home or statement.lineno < outermost.lineno
            return script.scope(statement) is home and is_apart

        before = [assigned for assigned in script.assignments if is_before(assigned[0])]
        if home in inside:
            before = []
        self.optimizers = [*dict.fromkeys(n for s, n, _ in before if (s, n) in created)]
        self.models = self._find_models(before)
        names = {*self.optimizers, *self.models}
        self._engines = [name for name in self.optimizers if name in self.models]
        self.optimizers = [f"{n}.optimizer" if n in self._engines else n for n in self.optimizers]
        places = [statement for statement, name, _ in before if name in names]
        wrapped = [script.statement(c) for c in script.calls if _WRAPPER.search(script.origin(c))]
        places += filter(is_before, wrapped)
        if places and home not in inside:
            self.setup = max(map(self._lift, places), key=lambda statement: statement.lineno)
        else:
            self._take_given(stepped)

    def _take_given(self, stepped: set[str]) -> None:
        """Takes what is trained from the arguments of the function that has the loop."""
        function = self._script.scope(self.loops[-1])
        given = [a.arg for a in function.args.args] if isinstance(function, Function) else []
        self.optimizers = [name for name in given if name in stepped]
        self.models = [n for n in given if _MODEL.search(n) and n in self._called_models()]
        if not self.optimizers or not isinstance(function, Function):
            line = self.loops[-1].lineno
            raise ValueError(f"nothing before line {line} creates what its loop trains")
        has_docstring = ast.get_docstring(function) is not None
        self.setup, self.is_given = function.body[has_docstring], True

    def _find_models(self, before: list[Assignment]) -> list[str]:
        """Names of the models whose parameters the optimizers have, as they are wrapped last."""
        models, named = list[str](), list[str]()
        attributes = {
            v.id: n for _, n, v in before if n.startswith("self.") and isinstance(v, ast.Name)
        }
        for _, name, value in before:
            calls = calls_in(value)
            if name in self.optimizers:
                models += [attributes.get(model, model) for model in self._given_to(value)]
            is_wrapper = bool(calls and _WRAPPER.search(self._script.origin(value)))
            if is_wrapper := is_wrapper and not _OPTIMIZER.search(name):
                given = {n for c in calls for a in ast.walk(c) if (n := name_of(a))}
                models = [name if model in given else model for model in models]
            if is_wrapper or _MODEL.search(name):
                named.append(name)
        called = self._called_models()
        return [*dict.fromkeys(models or [n for n in named if n in called][:1] or named[-1:])]

    def _given_to(self, value: ast.expr) -> Iterator[str]:
        """Models whose parameters what creates an optimizer is given, here or in its function."""
        for call in calls_in(value):
            defined = self._script.function_of(call)
            for inner in [call, *(calls_in(defined) if defined else ())]:
                model, _, method = name_of(inner.func).rpartition(".")
                is_known = inner is call or model.startswith("self.")
                if method in _PARAMETERS and model and is_known:
                    yield model
            given = (*call.args, *(keyword.value for keyword in call.keywords))
            yield from (n for n in map(name_of, given) if _MODEL.search(n))

    def _called_models(self) -> set[str]:
        """What the loop and its functions call or hand on where gradients are on."""
        script, names = self._script, set[str]()
        functions = {f for call in self.calls_inside() if (f := script.function_of(call))}
        inner = [call for function in functions for call in calls_in(function)]
        for call in (*self.calls_inside(), *inner):
            blocks = [a for a in script.ancestors(call) if isinstance(a, ast.With)]
            if not any(map(_is_without_gradients, blocks)):
                names |= {name_of(call.func), *map(name_of, call.args)}
        return names

    def _lift(self, statement: ast.stmt) -> ast.stmt:
        """The outermost block that a statement stands in and the training does not."""
        around = {a for call in self.calls for a in self._script.ancestors(call)}
        for ancestor in self._script.ancestors(statement):
            if ancestor in around or not isinstance(ancestor, ast.If | ast.With | ast.Try):
                break
            if isinstance(ancestor, ast.If) and not self._is_defined_after(ancestor):
                break
            statement = ancestor
        return statement

    def _is_defined_after(self, block: ast.If) -> bool:
        """Whether what is trained has its names however a condition is."""
        places = defaultdict[str, set[bool | None]](set)  # in which branch, or outside of both
        for statement, name, _ in self._script.assignments:
            if name in {*self.models, *self.optimizers}:
                around = {statement, *self._script.ancestors(statement)}
                is_inside = block in around
                places[name].add(around.isdisjoint(block.body) if is_inside else None)
        return all(None in found or len(found) > 1 for found in places.values())

    def calls_inside(self) -> Iterator[ast.Call]:
        """The calls of the functions in which the training runs, within its outermost loop."""
        script, outermost = self._script, self.loops[-1]
        scopes = {script.scope(call) for call in self.calls} - {script.scope(outermost)}
        for call in script.calls:
            if script.scope(call) in scopes or outermost in script.ancestors(call):
                yield call

    def evaluations(self) -> Iterator[ast.stmt]:
        """The statements inside that run the model without training it; not in every step."""
        script = self._script
        for call in self.calls_inside():
            around, name = [*script.ancestors(call)], name_of(call.func)
            turn = around[: around.index(self.loops[0])] if self.loops[0] in around else ()
            is_in_each = turn and not any(isinstance(a, ast.If) for a in turn)
            is_before = turn and call.lineno < self.end.lineno
            if is_before and (is_in_each or script.function_of(call) is None):
                continue  # a part of the step, such as a rollout or a teacher
            blocks = [a for a in around if isinstance(a, ast.With) and _is_evaluation(a)]
            defined = script.function_of(call)
            if defined is not None and _is_evaluation(defined):
                statement = script.statement(call)
                yield from [statement] if turn or not self._trains_on(statement) else ()
            elif name in self.models if turn else (name in self.models or _MODEL.search(name)):
                loops = [loop for loop in script.loops(call) if loop not in self.loops]
                yield from (loops or blocks)[-1:] if blocks else ()

    def rollouts(self) -> Iterator[ast.stmt]:
        """The statements outside of the steps that make what these train on, without gradients."""
        script = self._script
        for call in self.calls_inside():
            defined, statement = script.function_of(call), script.statement(call)
            is_outside = self.loops[0] not in script.ancestors(call)
            is_without = defined is not None and _is_evaluation(defined)
            if is_outside and is_without and self._trains_on(statement):
                yield statement

    def _trains_on(self, statement: ast.stmt) -> bool:
        """Whether what a statement assigns is read in the steps."""
        names = {n for s, n, _ in self._script.assignments if s is statement}
        return bool(names & {*map(name_of, ast.walk(self.loops[0]))})

    def shares(self, collectives: re.Pattern[str]) -> Iterator[ast.If]:
        """Blocks beside the step in which all parameters are handed round now and then."""
        script = self._script
        for call in script.calls:
            around = [*script.ancestors(call)]
            block = next((a for a in around if isinstance(a, ast.If)), None)
            if block is None or self.loops[0] not in around or block is script.parents[self.end]:
                continue
            is_each = any(isinstance(a, ast.For) for a in around[: around.index(block)])
            if is_each and collectives.search(last_name(call)):
                yield block
                return

    def loss(self) -> tuple[str, str]:
        """The loss where the step ends, and why it is that; empty where none is seen."""
        script, scope = self._script, self._script.scope(self.end)
        found, last_line = dict[ast.AST, ast.expr](), 1 + (self.end.end_lineno or 0)
        for call in self.calls_inside():
            is_near = script.scope(call) is scope and call.lineno < last_line
            part = _operand(call) if last_name(call) == "backward" else None
            is_near = is_near or name_of(part).startswith("self.")
            if part is not None and is_near and _is_cheap(part):
                found[call] = part
        certain = [node for node in found if self._is_certain(node, found)]
        depths = {n: sum(isinstance(a, ast.If) for a in script.ancestors(n)) for n in certain}
        if certain:
            backward = min(reversed(certain), key=depths.__getitem__)
            return self._whole_loss(backward, found[backward])
        assigned: dict[ast.AST, ast.expr] = {
            statement: ast.Name(name)
            for statement, name, value in script.assignments
            if script.scope(statement) is scope
            and self.loops[0] in script.ancestors(statement)
            and statement.lineno < last_line
            and _LOSS.search(name)
            and calls_in(value)
            and not found
        }
        names = [name_of(n) for s, n in assigned.items() if self._is_certain(s, assigned)]
        return names[-1] if names else "", ""

    def _is_certain(self, node: ast.AST, found: dict[ast.AST, ast.expr]) -> bool:
        """Whether each step has what is found at a node, there or in the other branch."""
        script, end = self._script, {self.end, *self._script.ancestors(self.end)} - {self.end}
        around = [*script.ancestors(node)]
        for block in around[: around.index(self.loops[0])] if self.loops[0] in around else ():
            if not isinstance(block, ast.If) or block in end:
                continue
            text = ast.unparse(found[node])
            same = [{*script.ancestors(n)} for n, e in found.items() if ast.unparse(e) == text]
            branches = {nodes.isdisjoint(block.body) for nodes in same if block in nodes}
            if len(branches) == 1:
                return False
        return True

    def _whole_loss(self, backward: ast.AST, part: ast.expr) -> tuple[str, str]:
        """The loss of all micro-batches from that of the last, which backward was run on."""
        script, name, text = self._script, name_of(part), ast.unparse(part)
        inner = [loop for loop in script.loops(backward) if self.loops[0] in script.ancestors(loop)]
        ranges = [loop.iter for loop in inner if isinstance(loop, ast.For)]
        calls = [c for c in ranges if isinstance(c, ast.Call) and last_name(c) == "range"]
        counts = [ast.unparse(call.args[-1]) for call in calls]
        if _is_quotient(part) and self._share_of(part.right, counts):
            return ast.unparse(part.left), _LAST_PART
        values = [
            value
            for statement, n, value in script.assignments
            if n == name != "" and statement.lineno < script.statement(backward).lineno
        ]
        unscaled = [
            v for v in values if name not in map(name_of, ast.walk(v))
        ]  # it is scaled later
        for node in (n for value in [*values[-1:], part] for n in ast.walk(value)):
            if _is_quotient(node) and (count := self._share_of(node.right, counts)):
                why = f"the loss was divided by {ast.unparse(node.right)}"
                return f"{text} * {_bracketed(count)}", f"{why}: the step tells its last part's"
        product = unscaled[-1] if unscaled else part
        if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
            factor = name_of(product.right)
            if _COUNT.search(factor):
                why = f"the loss was multiplied by {factor}: the step tells its last part's"
                return f"{text} / {factor}", why
        return text, _LAST_PART if inner else ""

    def _share_of(self, divisor: ast.expr, counts: list[str]) -> str:
        """By what to multiply a loss that was divided so; empty if not for accumulation."""
        text = ast.unparse(divisor)
        for count in counts:
            values = [v for _, name, v in self._script.assignments if name == count]
            names = {name_of(node) for value in values for node in ast.walk(value)}
            if text == count or (text in names and isinstance(divisor, ast.Name)):
                return count
        values = [v for _, name, v in self._script.assignments if name == text]
        texts = [text, *([] if _COUNT.search(text) else map(ast.unparse, values))]
        return text if any("accum" in each.lower() for each in texts) else ""

    def step_condition(self) -> str:
        """What comes before a step where the statement that ends it may end a micro-batch only."""
        script = self._script
        parts = [f"{e}.micro_steps % {e}.gradient_accumulation_steps() == 0" for e in self._engines]
        accumulating = [c for c in self.calls_inside() if last_name(c) == "accumulate"]
        parts += [f"{name_of(c.func).rpartition('.')[0]}.sync_gradients" for c in accumulating]
        lists = [b for b in vars(script.parents[self.end]).values() if isinstance(b, list)]
        siblings = next(block for block in lists if self.end in block)
        for sibling in siblings[siblings.index(self.end) + 1 :]:
            left = getattr(getattr(sibling, "test", None), "left", None)
            if isinstance(left, ast.BinOp) and "accum" in ast.unparse(left.right).lower():
                assert isinstance(sibling, ast.If)
                parts.append(ast.unparse(sibling.test))
        return f"if {parts[0]}: " if parts else ""


def _is_evaluation(block: ast.AST) -> bool:
    """Whether a block runs a model without training it."""
    return _is_without_gradients(block) and "backward" not in map(last_name, calls_in(block))


def _is_without_gradients(block: ast.AST) -> bool:
    roots = block.items if isinstance(block, ast.With) else [block]
    nodes = (node for root in roots for node in ast.walk(root))
    return any(getattr(n, "attr", getattr(n, "id", "")) in _NO_GRADIENTS for n in nodes)


def _operand(backward: ast.Call) -> ast.expr | None:
    """What a backward is run on, before it is scaled; None where that may not be the loss."""
    receiver = backward.func.value if isinstance(backward.func, ast.Attribute) else None
    if isinstance(receiver, ast.Call) and last_name(receiver) in {"scale", "scale_loss"}:
        return next(iter(receiver.args), None)
    given = [part for a in backward.args for part in (a.elts if isinstance(a, ast.List) else [a])]
    if not given:
        return receiver
    return next((e for e in given if any(map(_LOSS.search, map(name_of, ast.walk(e))))), None)


def _is_cheap(loss: ast.expr) -> bool:
    """Whether a loss can be written a second time: no model runs for it."""
    called = [call.func for call in calls_in(loss)]
    return all(
        isinstance(f, ast.Attribute)
        and (isinstance(f.value, ast.Call | ast.Subscript) or _LOSS.search(name_of(f.value)))
        for f in called
    )


def _is_quotient(node: ast.AST) -> TypeGuard[ast.BinOp]:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def _bracketed(text: str) -> str:
    return text if text.replace(".", "").isidentifier() else f"({text})"
