"""The modules that are not inlined in a simulation."""

from streamgen.runtime.sharing import sharing

LONG = "  assign y = a;\n" * 60


def module(name: str, body: str) -> str:
    return f"module {name}(a, b, clk, y);\n{body}endmodule\n\n"


def instance(name: str, label: str) -> str:
    return f"  {name} {label} (\n    .a(a)\n  );\n"


PORTS = "  input signed [3:0] a;\n  wire signed [3:0] a;\n  input b;\n  input clk;\n  output y;\n"


def test_large_modules_with_several_instances():
    verilog = (
        module("leaf", PORTS + LONG)
        + module("small", PORTS)
        + module("pair", instance("leaf", "one") + instance("leaf", "\\two$1 "))
        + module("top", instance("pair", "p") + instance("small", "s") + instance("small", "t"))
        + module("unused", instance("leaf", "x"))
    )
    assert sharing(verilog, "top").splitlines() == [
        "`verilator_config",
        'no_inline -module "leaf"',
        'public_flat_rd -module "leaf" -var "a"',
        'public_flat_rd -module "leaf" -var "b"',
    ]


def test_instances_are_counted_through_the_hierarchy():
    verilog = (
        module("leaf", LONG)
        + module("middle", instance("leaf", "x"))
        + module("top", instance("middle", "a") + instance("middle", "b"))
    )
    rules = sharing(verilog, "top").splitlines()
    assert rules[1:] == ['no_inline -module "leaf"', 'no_inline -module "middle"']


def test_instances_in_modules_with_escaped_names_count():
    verilog = (
        module("leaf", LONG)
        + module("\\top.part ", instance("leaf", "one") + instance("leaf", "two"))
        + module("top", instance("\\top.part ", "part"))
    )
    assert sharing(verilog, "top").splitlines()[1:] == ['no_inline -module "leaf"']


def test_a_module_in_a_shared_one_is_shared_with_it():
    verilog = (
        module("\\pair.part ", LONG)
        + module("pair", instance("\\pair.part ", "part"))
        + module("top", instance("pair", "a") + instance("pair", "b"))
    )
    assert sharing(verilog, "top").splitlines()[1:] == ['no_inline -module "pair"']


def test_other_styles_are_left_alone():
    assert sharing("module top (input wire a); leaf l(.a(a)); endmodule", "top") == "`verilator_config\n"
