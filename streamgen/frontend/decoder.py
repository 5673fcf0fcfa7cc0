"""A torch module becomes the graph of a language model: exported with its cache as inputs and outputs, cut
where residuals meet.

The module is traced once, for a few tokens at the very end of its context, without decomposition. Regions
lie between the additions to the residual; each is verified by its operations:

    embedding     one lookup of the ids
    norm          pow, mean, add, rsqrt, mul, mul; or rms_norm                       (values.py)
    attention     Linear q, k, v; rotation; cache; scaled_dot_product_attention, or
                  matmul, softmax, matmul; Linear o                                  (attention.py)
    feed-forward  Linear gate, function, Linear up, mul, Linear down
    head          norm and Linear

Names of models, classes and modules play no part; they are where a message says that something is wrong.
"""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from streamgen.frontend.assembly import FeedForwardParts, LayerParts, language_model
from streamgen.frontend.attention import match_attention
from streamgen.frontend.origins import MOVES, RENAMES
from streamgen.frontend.trace import GELU, UNARY, Mismatch, aten, export_program, report, shape, where
from streamgen.frontend.values import Values
from streamgen.graph.logical import LogicalGraph
from streamgen.operations import Linear, Norm

__all__ = ["import_decoder"]

TOKENS = 3  # of the traced pass: one would hide a mask, two look like pairs
KNOWN = {
    *RENAMES,
    *MOVES,
    *UNARY,
    aten._assert_tensor_metadata.default,
    aten.add.Tensor,
    aten.div.Tensor,
    aten.embedding.default,
    aten.gelu.default,
    aten.linear.default,
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
    aten.matmul.default,
    aten.mean.dim,
    aten.mul.Tensor,
    aten.pow.Tensor_Scalar,
    aten.rms_norm.default,
    aten.rsqrt.default,
    aten.scaled_dot_product_attention.default,
    aten.softmax.int,
    aten.sqrt.default,
    aten.square.default,
    aten.sub.Tensor,
    aten.where.ScalarOther,
    aten.where.self,
}
SUPPORTED = (
    "an embedding; layers of x + attention(RMSNorm(x)) and x + down(function(gate(y)) * up(y)), "
    "y = RMSNorm(x), with ReLU, Sigmoid, SiLU, Tanh or GELU; grouped-query attention with one scale, a "
    "causal mask over the whole context and rotary positions or none; RMSNorm and a Linear head"
)
SIZES = ("layers", "kv_heads", "head_dim", "context")


class _Functional(torch.nn.Module):
    """A transformers model, its cache as plain inputs and outputs."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        keys: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        cache = sys.modules["transformers"].DynamicCache()
        for layer, pair in enumerate(zip(keys, values, strict=True)):
            cache.update(*pair, layer)
        out = self.model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True)
        return out.logits, [layer.keys for layer in cache.layers], [layer.values for layer in cache.layers]


def import_decoder(
    module: torch.nn.Module,
    *,
    layers: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    context: int | None = None,
    name: str | None = None,
) -> LogicalGraph:
    """The graph of the decoder that a module in eval mode computes.

    A module of one's own is called as `module(ids, positions, keys, values) -> (logits, keys, values)`: ids
    and positions int64 [1, T], keys and values a list of a tensor [1, kv_heads, P, head_dim] a layer, which
    comes back with P + T positions, logits [1, T, vocabulary]; sizes must be given. A causal language model
    of transformers is called through its own cache; what is not given is read from its config. `context` is
    the number of positions that the trace covers, cache included: masks and rotary tables are verified up
    to there.

    Linear modules may carry `weight_grid`, as those of `load_feed_forward` do.

    Raises TypeError or ValueError for wrong sizes and weights that are not finite, UnsupportedOperationError
    with every operation that cannot be compiled.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"module is {type(module).__name__}; a torch.nn.Module is needed")
    given = dict(zip(SIZES, (layers, kv_heads, head_dim, context), strict=True))
    wrapper = ""
    called = module
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(module, transformers.PreTrainedModel):
        given = _config_sizes(module.config) | {k: v for k, v in given.items() if v is not None}
        called, wrapper = _Functional(module), "model"
    missing = [size for size in SIZES if given[size] is None]
    if missing:
        raise TypeError(
            f"import_decoder needs {', '.join(missing)} of a module that is not a transformers model"
        )
    least = dict(zip(SIZES, (1, 1, 1, TOKENS + 1), strict=True))
    sizes = {}
    for size, value in given.items():
        if not isinstance(value, int) or value < least[size]:
            raise ValueError(f"{size} is {value!r}; an integer of at least {least[size]} is needed")
        sizes[size] = value
    return _Recovery(called, sizes, wrapper).run(type(module).__name__ if name is None else name)


def _config_sizes(config: Any) -> dict[str, Any]:
    """What a transformers config says of the cache."""
    config = config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    return {
        "layers": config.num_hidden_layers,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "context": config.max_position_embeddings,
    }


class _Recovery:
    """One exported program, read region by region."""

    def __init__(self, module: torch.nn.Module, sizes: dict[str, int], wrapper: str) -> None:
        self.sizes = sizes
        self.wrapper = wrapper
        layers, kv_heads, head_dim, self.context = (sizes[size] for size in SIZES)
        past = self.context - TOKENS
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)

        def cache() -> list[torch.Tensor]:  # one number each, whatever the context
            return [torch.zeros((), dtype=dtype).expand(1, kv_heads, past, head_dim) for _ in range(layers)]

        ids = torch.zeros(1, TOKENS, dtype=torch.int64)
        positions = torch.arange(past, self.context)[None]
        program = export_program(module, (ids, positions, cache(), cache()))
        self.values = Values(module, program)
        self.problems: dict[Node, str] = {}

    def run(self, name: str) -> LogicalGraph:
        values, layers = self.values, self.sizes["layers"]
        if len(values.results) != 1 + 2 * layers:
            raise ValueError(
                f"the module returns {len(values.results)} tensors; {1 + 2 * layers} are needed: logits, and "
                f"keys and values of {layers} layers"
            )
        for node in values.written:
            self._note(node, "it changes a value that is read in another place too")
        for node in values.live:
            if node in values.data and values.target(node) not in KNOWN:
                self._note(node, "")
            elif node.target == aten.dropout.default and node.args[2]:
                self._note(node, "it is in training mode; call module.eval() first")
            elif (reason := values.unfolded.get(node)) is not None:
                self._note(node, reason)
        if values.written or values.unfolded.keys() & set(values.live):
            self._report()  # values are not what the graph says, or not known
        try:
            embedding, x = self._embedding()
        except Mismatch as problem:
            self._note(problem.node, str(problem))
            self._report()
            raise
        made: list[Any] = []
        branches, last = self._branches(x)
        for index, (branch, before) in enumerate(branches):
            made.append(self._try(before, self._block, branch, before, index))
        ending = None
        if len(branches) == 2 * layers:
            ending = self._try(last, self._ending, values.results[0], last)
        else:
            self._note(
                self._reader(last),
                f"{len(branches)} additions to the residual are found up to here; {2 * layers} are needed, "
                f"two for each of {layers} layers",
            )
        self._report()
        stack = [
            LayerParts(attention_norm=before, attention=a, feed_forward_norm=between, feed_forward=block)
            for (before, a), (between, block) in zip(made[::2], made[1::2], strict=True)
        ]
        assert ending is not None
        norm, head = ending
        return language_model(name, embedding, stack, norm, head, self.context)

    def _try(self, before: Node, match: Any, result: Node, *args: Any) -> Any:
        """Match a region from its result down to the residual before it, or note what is in the way.

        A region that holds a call already named is left at that.
        """
        try:
            return match(result, *args)
        except Mismatch as problem:
            values = self.values
            if not any(
                values.made_of(result, node) and values.made_of(node, before) for node in self.problems
            ):
                self._note(problem.node, str(problem))
            return None

    def _report(self) -> None:
        """Raise UnsupportedOperationError when there are problems, in the order of the calls."""
        found = sorted(self.problems, key=self.values.order.__getitem__)
        report([self.problems[node] for node in found], SUPPORTED)

    def _note(self, node: Node, reason: str) -> None:
        """Keep the first problem of a call."""
        if node in self.problems:
            return
        text = f": {reason}" if reason else ""
        target = node.target if node.op == "call_function" else node.name
        self.problems[node] = f"{where(node, self.wrapper)}: {target}{text}"

    def _embedding(self) -> tuple[Any, Node]:
        """The table, and the lookup that makes the first residual."""
        values = self.values
        found = [node for node in values.live if values.target(node) == aten.embedding.default]
        if len(found) != 1 or values.rows(found[0].args[1]) is not values.inputs[0]:
            last = found[-1] if found else values.results[0]
            raise Mismatch(last, f"one lookup of the ids in an embedding is needed, {len(found)} are found")
        table = found[0].args[0]
        if values.constant(table) is None:
            raise Mismatch(found[0], "its table is computed at run time")
        return values.constants.array(found[0], table), found[0]

    def _branches(self, x: Node) -> tuple[list[tuple[Node, Node]], Node]:
        """What is added to the residual, and the residual before, in order; and the residual in the end."""
        values = self.values
        found = []
        for node in values.live:
            pair = values.operands(node, aten.add.Tensor) if node in values.data else None
            if pair is None or any(operand not in values.data for operand in pair):
                continue
            a, b = (values.rows(operand) for operand in pair)
            if (a is x and values.made_of(b, x)) or (b is x and values.made_of(a, x)):
                found.append((b if a is x else a, x))
                x = node
        return found, x

    def _reader(self, x: Node) -> Node:
        """The first call that computes with the rows x."""
        values = self.values
        for node in values.live:
            sources = [source for source in node.all_input_nodes if source in values.data]
            if sources and values.rows(node) is node and x in map(values.rows, sources):
                return node
        return x

    def _block(self, branch: Node, before: Node, index: int) -> tuple[Norm, Any]:
        """Norm and attention of an even index, norm and feed-forward of an odd one."""
        values = self.values
        last, inner = values.linear(branch)
        if index >= 2 * self.sizes["layers"]:
            raise Mismatch(branch, f"there are {self.sizes['layers']} layers, this is part of one more")
        if index % 2 == 0:
            block, x = match_attention(values, last, inner, index // 2, self.context)
            made: Any = block
        else:
            made, x = self._feed_forward(last, inner)
        norm, residual = values.norm(x)
        if residual is not before:
            raise Mismatch(x, "it must normalise the residual that the result is added to")
        return norm, made

    def _feed_forward(self, down: Linear, inner: Node) -> tuple[FeedForwardParts, Node]:
        values = self.values
        product = values.rows(inner)
        pair = values.operands(product, aten.mul.Tensor)
        if pair is None or any(operand not in values.data for operand in pair):
            raise Mismatch(product, "function(gate(x)) * up(x) is needed here")
        a, b = (values.rows(operand) for operand in pair)
        if self._function(a) is None:
            a, b = b, a
        function = self._function(a)
        if function is None:
            raise Mismatch(product, "one operand must be a function of a Linear, the other a Linear")
        gate, x = values.linear(a.args[0])
        up, other = values.linear(b)
        x = values.rows(x)
        if values.rows(other) is not x:
            raise Mismatch(product, "gate and up must read the same rows")
        return FeedForwardParts(gate=gate, up=up, down=down, function=function), x

    def _function(self, node: Node) -> str | None:
        target = self.values.target(node)
        if target == aten.gelu.default:
            return GELU[node.kwargs.get("approximate", "none")]
        return UNARY.get(target)

    def _ending(self, logits: Node, last: Node) -> tuple[Norm, Linear]:
        values = self.values
        if shape(logits)[:-1] != (1, TOKENS):
            raise Mismatch(
                logits, f"the logits have shape {list(shape(logits))}; [1, T, vocabulary] is needed"
            )
        head, x = values.linear(logits)
        norm, residual = values.norm(x)
        if residual is not last:
            raise Mismatch(residual, "the last norm must read the residual after the last layer")
        return norm, head
