// Operands into a pipelined unit, results out of it, in the cycles in which it is enabled. The generated
// unit.h names the operands (OPERANDS). Returns false when a result moved while the unit was not enabled.
#include <cstdint>
#include <memory>
#include <random>

#include "Vdesign.h"
#include "unit.h"

extern "C" __attribute__((visibility("default"))) bool simulate(
    const uint64_t* const* operands, uint64_t* results, uint64_t count, uint64_t latency, uint64_t seed, double stalls) {
    const auto context = std::make_unique<VerilatedContext>();
    context->randReset(2);
    context->randSeed(int(seed % 0x7fffffff) + 1);
    const auto design = std::make_unique<Vdesign>(context.get(), "");
    std::mt19937_64 random(seed);
    const uint64_t limit = uint64_t(stalls * 18446744073709549568.0);
    uint64_t taken = 0, before = 0;
    while (taken < count + latency - 1) {
        const bool enabled = !limit || random() >= limit;
        const uint64_t at = enabled ? (taken < count ? taken : 0) : random() % count;
#define DRIVE(index, name) design->name = operands[index][at];
        OPERANDS(DRIVE)
        design->enable = enabled;
        design->clk = 0;
        design->eval();
        design->clk = 1;
        design->eval();
        const uint64_t now = design->o;
        if (enabled && ++taken >= latency) results[taken - latency] = now;
        if (!enabled && now != before) return false;
        before = now;
    }
    Verilated::threadContextp(context.get());
    return true;
}
