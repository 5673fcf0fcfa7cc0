// Compares the tokens that pass a side of a FIFO with the expected tokens, in the cycle in which they pass.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "verilated.h"
#include "verilated_sym_props.h"

class Probe {
  public:
    uint64_t passed = 0;  // tokens since `expect`

    // Connect to the pins of a side ("i" or "o") of the FIFO at `scope`. Returns false if the model does not show them.
    bool connect(const VerilatedContext& context, const char* scope, const std::string& side) {
        const VerilatedScope* found = context.scopeFind(scope);
        if (!found) return false;
        const auto pin = [&](const char* name) {
            const VerilatedVar* variable = found->varFind((side + name).c_str());
            return static_cast<const uint8_t*>(variable ? variable->datap() : nullptr);
        };
        valid_ = pin("__valid"), ready_ = pin("__ready"), payload_ = pin("__payload");
        return valid_ && ready_ && payload_;
    }

    // Expect `count` tokens of `bytes` bytes each. They must stay in memory until the next call.
    void expect(const uint8_t* tokens, uint64_t count, uint64_t bytes) {
        expected_ = tokens, count_ = count, bytes_ = bytes, passed = 0;
    }

    // Call this before the clock edge. Returns false if a wrong token or a token too many passes.
    bool step() {
        if (!(*valid_ && *ready_)) return true;
        if (passed == count_ || std::memcmp(payload_, expected_ + passed * bytes_, bytes_)) return false;
        ++passed;
        return true;
    }

    void read(uint8_t* token) const { std::memcpy(token, payload_, bytes_); }

  private:
    const uint8_t *valid_{}, *ready_{}, *payload_{}, *expected_{};
    uint64_t count_ = 0, bytes_ = 0;
};
