"""A training script as its syntax tree, and the loop in it: what it trains, where a step ends."""

import ast
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
_MAX_BYTES = 1 << 20
_PROJECT_DEPTH = 3  # folders up from the script in which a module of the project may be


Assignment = tuple[ast.stmt, str, ast.expr]
"""Statement, name and value; of a call with several results the first is taken for its result."""


def name_of(expression: ast.AST | None) -> str:
    """The dotted name that an expression is, such as ``self.model``; empty for any other."""
    parts: list[str] = []
    while isinstance(expression, ast.Attribute):
        parts.append(expression.attr)
        expression = expression.value
    return ".".join([expression.id, *parts[::-1]]) if isinstance(expression, ast.Name) else ""


class TrainingScript:
    """A script that was read and never runs.

    Attributes:
        lines: its lines without their ends.
        parents: what each node stands in; the nodes come from the outside in.
        calls: all calls, from top to bottom.
        callers: the calls of each function of the script; under None those of other functions.
        imports: full names by the names that they are imported as.

    Raises:
        ValueError: the file is not a script that this Python reads; the text says why.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._imported: dict[Path, ast.Module] = {}
        self.lines, self.tree = _parse(path)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        calls = [node for node in self.parents if isinstance(node, ast.Call)]
        self.calls = sorted(calls, key=lambda call: (call.end_lineno, call.end_col_offset))
        self._classes = {n.name: n for n in self.parents if isinstance(n, ast.ClassDef)}
        functions = [node for node in self.parents if isinstance(node, Function)]
        self._functions = {(self.class_around(f), f.name): f for f in functions}
        self.imports: dict[str, str] = {}
        for node in self.parents:
            if isinstance(node, ast.Import):
                tops = (a.name if a.asname else a.name.partition(".")[0] for a in node.names)
                self.imports |= {a.asname or t: t for a, t in zip(node.names, tops, strict=True)}
            elif isinstance(node, ast.ImportFrom):
                self.imports |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        self.assignments = sorted(self._assignments(), key=lambda assigned: assigned[0].lineno)
        self.callers = defaultdict[ast.AST | None, list[ast.Call]](list)
        for call in self.calls:
            self.callers[self._defined(call)].append(call)

    def _assignments(self) -> Iterator[Assignment]:
        for node in self.parents:
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                yield node, name_of(node.target), node.value
            for target in node.targets if isinstance(node, ast.Assign) else ():
                assert isinstance(node, ast.Assign)
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for name, value in zip(names, values, strict=False):
                    yield node, name_of(name), value

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, from the inside out."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: ast.AST) -> ast.AST:
        """The function that a node stands in; the module outside of functions."""
        return next((a for a in self.ancestors(node) if isinstance(a, Function)), self.tree)

    def class_around(self, node: ast.AST) -> str:
        """Name of the class that a node stands in; empty outside of classes."""
        return next((a.name for a in self.ancestors(node) if isinstance(a, ast.ClassDef)), "")

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that a node is or stands in."""
        return next(n for n in (node, *self.ancestors(node)) if isinstance(n, ast.stmt))

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node in its function, from the inside out."""
        around = [ancestor for ancestor in self.ancestors(node) if isinstance(ancestor, Loop)]
        return [loop for loop in around if self.scope(loop) is self.scope(node)]

    def _defined(self, call: ast.Call) -> ast.AST | None:
        """The function or method of this script that a call runs."""
        receiver, _, method = name_of(call.func).rpartition(".")
        if receiver == "self" or (method and not receiver):
            return self._functions.get((receiver and self.class_around(call), method))
        if not isinstance(call.func, ast.Attribute):
            return None
        built = [value for _, name, value in self.assignments if name == receiver != ""]
        names = {name_of(v.func) for v in (*built, call.func.value) if isinstance(v, ast.Call)}
        found = (self._functions.get((name, call.func.attr)) for name in names & {*self._classes})
        return next(filter(None, found), None)

    def imported_function(self, call: ast.Call) -> Function | None:
        """The function of another file of the project that a call runs; None without one."""
        module, _, name = self.origin(call).rpartition(".")
        parts = [part for part in module.split(".") if part not in {"", "None"}]
        if not parts or not name:
            return None
        for folder in self.path.absolute().parents[:_PROJECT_DEPTH]:
            file = folder.joinpath(*parts).with_suffix(".py")
            if file.is_file() and file.stat().st_size <= _MAX_BYTES:
                if file not in self._imported:
                    try:
                        self._imported[file] = _parse(file)[1]
                    except (OSError, ValueError):  # what it holds stays unknown
                        self._imported[file] = ast.Module([], [])
                body = self._imported[file].body
                return next((f for f in body if isinstance(f, Function) and f.name == name), None)
        return None

    def origin(self, value: ast.AST) -> str:
        """The full name of what is called; of a class of the script that of its first base."""
        name = name_of(value.func if isinstance(value, ast.Call) else value)
        root, dot, rest = name.partition(".")
        bases = self._classes[root].bases if root in self._classes else []
        return (
            name_of(bases[0]) and self.origin(bases[0])
            if bases
            else self.imports.get(root, root) + dot + rest
        )


def _parse(path: Path) -> tuple[list[str], ast.Module]:
    with path.open("rb") as file:
        source = file.read(_MAX_BYTES + 1)
    if len(source) > _MAX_BYTES:
        raise ValueError(f"it is longer than {_MAX_BYTES} bytes; give the script with the loop")
    if path.suffix == ".ipynb":
        raise ValueError("it is a notebook; export it by jupyter nbconvert --to script")
    try:
        with warnings.catch_warnings(action="ignore"):  # of the script's own text
            text, tree = source.decode("utf-8-sig"), ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"this Python cannot read it: {line}{why}; mend that first") from error
    if not tree.body:
        raise ValueError("it has no statement; give the script with the training loop")
    return text.split("\n"), tree


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


def last_name(node: ast.AST) -> str:
    """The last part of what a call calls, such as ``step``; empty for anything else."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "attr", getattr(function, "id", "")))


class TrainingLoop:
    """The loop in which a script steps its optimizers, or does their work by hand.

    Attributes:
        loops: around the step, from the inside out, in all functions; a turn of the first is a
            step, or one of its micro-batches.
        calls: the statement with the step, and that with the call of each function around it.
        end: the statement after which the step has ended.
        setup: the statement after which ``models`` and ``optimizers`` have their values.
        other_lines: of steps in other loops.

    Raises:
        ValueError: no loop steps an optimizer, or nothing creates what it trains.
    """

    def __init__(self, script: TrainingScript) -> None:
        self._script = script
        steps = [call for call in script.calls if self._stepped(call)]
        if not any(self._loops(self._chain(call)) for call in steps):
            steps = [call for call in script.calls if last_name(call) == "backward"]
        chains = [chain for call in steps if self._loops(chain := self._chain(call))]
        if not chains:
            raise ValueError("no loop in it steps an optimizer or runs a backward")
        # Of nested loops the outer one: its turn has the steps of all critics or micro-batches.
        chain = min(reversed(chains), key=lambda chain: len(self._loops(chain)))
        self.loops = self._loops(chain)
        self.calls = chain[: 1 + max(i for i, node in enumerate(chain) if script.loops(node))]
        inner = [chain[0] for chain in chains if self.loops[0] in self._loops(chain)]
        self.other_lines = sorted({c[0].lineno for c in chains if c[0] not in inner})
        self.end = self._end_of_step(chain[0], inner)
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
        names = [*map(name_of, call.args[:1]), name_of(call.func).rpartition(".")[0]]
        found = (name for name in names if name and self._is_optimizer(name))
        return next(found, "") if last_name(call) == "step" else ""

    def _is_optimizer(self, name: str) -> bool:
        values = [value for _, n, value in self._script.assignments if n == name]
        names = [name, *map(self._script.origin, values)]
        return any(map(_OPTIMIZER.search, names)) and not any("ched" in text for text in names)

    def _end_of_step(self, statement: ast.stmt, steps: list[ast.stmt]) -> ast.stmt:
        """The last step with those of other branches, and with the bookkeeping that follows it."""
        script = self._script
        for block in [a for a in script.ancestors(statement) if isinstance(a, ast.If)]:
            around = [{step, *script.ancestors(step)} for step in steps]
            if len({nodes.isdisjoint(block.body) for nodes in around if block in nodes}) > 1:
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
            if self._is_optimizer(name) and (name_of(value) or _calls_in(value))
        ]
        nearest = [statement for statement, name in created if name in stepped]
        nearest = nearest or [statement for statement, _ in created] or [self.calls[-1]]
        own_scope = script.scope(self.calls[0])
        scopes = [script.scope(statement) for statement in nearest]
        home = own_scope if own_scope in scopes else scopes[-1]

        def is_before(statement: ast.stmt) -> bool:
            is_apart = script.scope(outermost) is not home or statement.lineno < outermost.lineno
            return script.scope(statement) is home and is_apart

        before = [assigned for assigned in script.assignments if is_before(assigned[0])]
        self.optimizers = [*dict.fromkeys(n for s, n, _ in before if (s, n) in created)]
        self.models = self._find_models(before)
        names = {*self.optimizers, *self.models}
        self._engines = [name for name in self.optimizers if name in self.models]
        self.optimizers = [f"{n}.optimizer" if n in self._engines else n for n in self.optimizers]
        places = [statement for statement, name, _ in before if name in names]
        wrapped = [script.statement(c) for c in script.calls if _WRAPPER.search(script.origin(c))]
        places += filter(is_before, wrapped)
        if not places:
            raise ValueError(f"nothing before line {outermost.lineno} creates what its loop trains")
        self.setup = max(map(self._lift, places), key=lambda statement: statement.lineno)

    def _find_models(self, before: list[Assignment]) -> list[str]:
        """Names of the models whose parameters the optimizers have, as they are wrapped last."""
        models, named = list[str](), list[str]()
        for _, name, value in before:
            calls = _calls_in(value)
            if name in self.optimizers:
                called = [name_of(call.func).rpartition(".") for call in calls]
                models += [m for m, _, f in called if f in {"parameters", "configure_optimizers"}]
            if is_wrapper := bool(calls and _WRAPPER.search(self._script.origin(value))):
                given = {n for c in calls for a in ast.walk(c) if (n := name_of(a))}
                models = [name if model in given else model for model in models]
            if is_wrapper or _MODEL.search(name):
                named = [name]
        return [*dict.fromkeys(models or named)]

    def _lift(self, statement: ast.stmt) -> ast.stmt:
        """The outermost block that a statement stands in and the training does not."""
        around = {a for call in self.calls for a in self._script.ancestors(call)}
        for ancestor in self._script.ancestors(statement):
            if ancestor in around or not isinstance(ancestor, ast.If | ast.With | ast.Try):
                break
            statement = ancestor
        return statement

    def calls_inside(self) -> Iterator[ast.Call]:
        """The calls of the functions in which the training runs, within its outermost loop."""
        script, outermost = self._script, self.loops[-1]
        scopes = {script.scope(call) for call in self.calls} - {script.scope(outermost)}
        for call in script.calls:
            if script.scope(call) in scopes or outermost in script.ancestors(call):
                yield call

    def evaluations(self) -> Iterator[ast.stmt]:
        """The statements inside that run the model without training it."""
        script = self._script
        functions = [f for f in script.callers if f is not None and _is_evaluation(f)]
        found = {call for function in functions for call in script.callers[function]}
        for call in self.calls_inside():
            around, name = [*script.ancestors(call)], name_of(call.func)
            blocks = [a for a in around if isinstance(a, ast.With) and _is_evaluation(a)]
            defined = script.imported_function(call)
            if call in found or (defined is not None and _is_evaluation(defined)):
                yield script.statement(call)
            elif (name in self.models or _MODEL.search(name)) and self.loops[0] not in around:
                loops = [loop for loop in script.loops(call) if loop not in self.loops]
                yield from (loops or blocks)[-1:] if blocks else ()

    def loss(self) -> str:
        """Name of the loss where the step ends; empty where it has none."""
        script, names = self._script, [""]
        for call in script.calls:
            is_near = script.scope(call) is script.scope(self.end) and call.lineno < self.end.lineno
            if last_name(call) == "backward" and is_near:
                names += filter(_LOSS.search, map(name_of, (*ast.walk(call.func), *call.args)))
        return names[-1]

    def divided_loss(self) -> str:
        """By what the loss was divided for accumulation; empty if by nothing that says so."""
        script, loss = self._script, self.loss()
        lines = [call.lineno for call in script.calls if last_name(call) == "backward"]
        values = [
            v for s, n, v in script.assignments if n == loss and s.lineno <= max(lines, default=0)
        ]
        for node in ast.walk(values[-1]) if values else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                divisor = ast.unparse(node.right)
                if "accum" in divisor.lower():
                    return divisor
        return ""

    def step_condition(self) -> str:
        """What comes before a step where the statement that ends it may end a micro-batch only."""
        parts = [f"{e}.micro_steps % {e}.gradient_accumulation_steps()" for e in self._engines]
        return f"if {parts[0]} == 0: " if parts else ""


def _calls_in(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _is_evaluation(block: ast.AST) -> bool:
    """Whether a block runs a model without training it."""
    names = set(map(last_name, _calls_in(block)))
    return "backward" not in names and bool(names & {"no_grad", "inference_mode", "eval"})
