"""Signed arithmetic of simulators equals Verilator's, bit for bit."""

import subprocess

from streamgen.runtime import verilator

PROGRAM = """
#include "verilated.h"

#include <cstdio>
#include <random>

static IData extend_ii(int bits, IData x) { return VL_EXTENDS_II(32, bits, x); }
static QData extend_qi(int bits, QData x) { return VL_EXTENDS_QI(64, bits, x); }
static QData extend_qq(int bits, QData x) { return VL_EXTENDS_QQ(64, bits, x); }
static IData product_iii(int bits, IData x, IData y) { return VL_MULS_III(bits, x, y); }
static QData product_qqq(int bits, QData x, QData y) { return VL_MULS_QQQ(bits, x, y); }

#include "arithmetic.h"

int main() {
    std::mt19937_64 random(1);
    unsigned wrong = 0;
    for (unsigned i = 0; i < 1000; ++i)
        for (int bits = 1; bits <= 64; ++bits) {
            const QData mask = ~0ull >> (64 - bits), least = 1ull << (bits - 1);
            const QData x = (i & 3 ? random() : i & 4 ? mask : least) & mask, y = random() & mask;
            wrong += extend_qi(bits, x) != VL_EXTENDS_QI(64, bits, x);
            wrong += extend_qq(bits, x) != VL_EXTENDS_QQ(64, bits, x);
            wrong += ((product_qqq(bits, x, y) ^ VL_MULS_QQQ(bits, x, y)) & mask) != 0;
            if (bits > 32) continue;
            wrong += extend_ii(bits, x) != VL_EXTENDS_II(32, bits, x);
            wrong += ((product_iii(bits, x, y) ^ VL_MULS_III(bits, x, y)) & mask) != 0;
        }
    std::printf("%u\\n", wrong);
}
"""


def test_signs_and_products_are_those_of_verilator(tmp_path):
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM)
    compiler, objects = verilator.library_objects()
    flags = (*verilator.COMMON, *verilator.TRACED[False], "-O1", f"-I{verilator.HERE}", *verilator._places())
    command = [compiler, *flags, str(source), *map(str, objects), "-lpthread", "-o", str(program)]
    subprocess.run(command, check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "0\n"
