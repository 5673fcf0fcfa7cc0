"""A model whose weights are records of their places in the weight files (`artifact.packed`)."""

from collections.abc import Mapping

from streamgen.artifact.packed import PackedColumns, PackedRows, PackedWeight
from streamgen.compiler.emit.images import placed_constants, weights_file
from streamgen.compiler.schedule.column_weights import ColumnWeights
from streamgen.model.graph import Graph
from streamgen.model.graph.late import LateArray, PartSource
from streamgen.model.graph.logical import LogicalGraph, Operation, Operator
from streamgen.model.operations.table_rows import TableSource
from streamgen.numbers.quantisation import IntegerWeight


def packed_model(model: LogicalGraph, graph: Graph) -> LogicalGraph:
    """The model with records in the place of its matmuls' weights and of its tables. model: quantised. graph:
    its finished graph of kernels."""
    columns: dict[tuple[ColumnWeights, int], dict[int, tuple[str, int]]] = {}
    tables: dict[int, dict[str, dict[int, tuple[str, int, str]]]] = {}  # by operation, format, first element
    for constant in placed_constants(graph):
        data, file = constant.tensor.data, weights_file(constant.tensor.channel)
        source = data.source if isinstance(data, LateArray) else None
        element = 0
        if isinstance(source, PartSource):
            element, source = source.first, source.whole.source
        if isinstance(source, ColumnWeights):
            assert isinstance(data, LateArray)
            columns.setdefault((source, constant.walk), {})[data.number] = file, constant.first
        elif isinstance(source, TableSource):
            parts = tables.setdefault(id(source.rows), {}).setdefault(source.dtype, {})
            parts[element] = file, constant.first, str(constant.itensor)
    weights = _weights(columns)

    def change(path: str, operation: Operation) -> Operator:
        op = operation.op
        if op.matmul is not None:
            return op.matmul.with_weight(weights[id(op.matmul.integers)])
        if id(op) not in tables:
            return op
        return op.packed(
            {
                name: PackedRows(parts=tuple(part for _, part in sorted(parts.items())))
                for name, parts in tables[id(op)].items()
            }
        )

    return model.map(change)


def _weights(
    columns: Mapping[tuple[ColumnWeights, int], Mapping[int, tuple[str, int]]],
) -> dict[int, IntegerWeight]:
    """Records of the weights of all matmuls, by weight."""
    records: dict[int, IntegerWeight] = {}
    for (source, walk), by_column in columns.items():
        places = tuple(by_column[column] for column in range(source.order.columns))
        record = PackedColumns.of(source.order, source.layout, places)
        for number, matmul in enumerate(source.walks[walk]):
            weight = matmul.integers
            records[id(weight)] = PackedWeight(
                columns=record,
                number=number,
                shape=tuple(weight.shape),
                format=weight.format,
                group=weight.group,
                grouped=weight.grouped,
                minimums=weight.minimums,
                bits=weight.scale_bits if weight.grouped else None,
                sums=weight.known_row_sum,
            )
    return records
