// Signed arithmetic for Verilator's code, in fewer instructions than in Verilator's own functions. If only the low
// bits of a product are kept, its operands need no sign extension. Two shifts extend a sign. The files that Verilator
// writes include this file after Verilator's headers.
#pragma once

#include "verilated.h"

#define VL_MULS_III(lbits, left, right) (static_cast<IData>(left) * static_cast<IData>(right))
#define VL_MULS_QQQ(lbits, left, right) (static_cast<QData>(left) * static_cast<QData>(right))
#define VL_EXTENDS_II(obits, lbits, value) (extended<int32_t, IData>(32 - (lbits), value))
#define VL_EXTENDS_QI(obits, lbits, value) (extended<int64_t, QData>(64 - (lbits), value))
#define VL_EXTENDS_QQ(obits, lbits, value) (extended<int64_t, QData>(64 - (lbits), value))

template <class Signed, class Word>
static inline __attribute__((always_inline)) Word extended(int above, Word value) {
    return static_cast<Word>(static_cast<Signed>(value << above) >> above);
}
