// Counts the busy and stalled cycles of nodes in each step of a run. A step is one phase in one walk of its section.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "verilated.h"
#include "verilated_sym_props.h"

// A node is busy in a cycle if a token passes one of its ports. It is stalled if no token passes and a token waits at
// an output. A step ends when its last token has passed its last port; then the next step begins. Only the cycles in
// which the hardware counts are counted, each with the activity of the previous cycle, as the hardware's counters do.
class Profile {
  public:
    std::vector<uint64_t> cycles, busy, stalled;  // cycles: by step; busy, stalled: by step and node

    // Connect to the pin of the top module that is high while the hardware counts. Returns false if the model does
    // not show it.
    bool begin(const VerilatedContext& context, const char* top, const char* pin, uint64_t nodes, uint64_t steps) {
        counting_ = find(context, top, pin);
        active_ = false, current_ = 0, surplus_ = 0;
        sides_.clear();
        open_.assign(steps, 0), state_.assign(nodes, IDLE);
        cycles.assign(steps, 0), busy.assign(steps * nodes, 0), stalled.assign(steps * nodes, 0);
        return counting_ && steps;
    }

    // Add a port of a node: a side of the FIFO at `scope`, "i" for an output. tokens: number of tokens in each step;
    // the array must stay in memory.
    bool add(const VerilatedContext& context, const char* scope, const std::string& side, uint64_t node,
             const uint64_t* tokens) {
        Side found{find(context, scope, (side + "__valid").c_str()), find(context, scope, (side + "__ready").c_str()),
                   node, side == "i" ? STALLED : IDLE, tokens};
        if (!found.valid || !found.ready) return false;
        for (uint64_t step = 0; step < open_.size(); ++step) open_[step] += tokens[step] != 0;
        found.step = following(found, 0);
        found.left = found.step < open_.size() ? tokens[found.step] : 0;
        sides_.push_back(found);
        return true;
    }

    void start() { active_ = true; }
    void stop() { active_ = false; }
    bool active() const { return active_; }

    // Whether exactly the tokens of all steps have passed.
    bool complete() const { return !surplus_ && first_open() == open_.size(); }

    // Call this before the clock edge.
    void step() {
        if (*counting_) count();
        current_ = first_open();
        std::fill(state_.begin(), state_.end(), IDLE);
        for (auto& side : sides_) {
            if (!*side.valid) continue;
            uint8_t& state = state_[side.node];
            if (!*side.ready) {
                if (state == IDLE) state = side.waits;
                continue;
            }
            state = BUSY;
            if (side.step == open_.size()) ++surplus_;
            else if (!--side.left) {
                --open_[side.step];
                side.step = following(side, side.step + 1);
                if (side.step < open_.size()) side.left = side.tokens[side.step];
            }
        }
    }

  private:
    static constexpr uint8_t IDLE = 0, STALLED = 1, BUSY = 2;
    struct Side {
        const uint8_t *valid, *ready;
        uint64_t node;
        uint8_t waits;  // the state of its node if only this side offers a token
        const uint64_t* tokens;
        uint64_t step = 0, left = 0;
    };

    const uint8_t* counting_{};
    std::vector<Side> sides_;
    std::vector<uint64_t> open_;  // by step: number of sides that have tokens to pass
    std::vector<uint8_t> state_;  // by node: state in the previous cycle
    uint64_t current_ = 0, surplus_ = 0;
    bool active_ = false;

    static const uint8_t* find(const VerilatedContext& context, const char* scope, const char* pin) {
        const VerilatedScope* found = context.scopeFind(scope);
        const VerilatedVar* variable = found ? found->varFind(pin) : nullptr;
        return static_cast<const uint8_t*>(variable ? variable->datap() : nullptr);
    }

    uint64_t following(const Side& side, uint64_t step) const {
        while (step < open_.size() && !side.tokens[step]) ++step;
        return step;
    }

    uint64_t first_open() const {
        uint64_t step = current_;
        while (step < open_.size() && !open_[step]) ++step;
        return step;
    }

    void count() {
        const uint64_t step = std::min<uint64_t>(current_, open_.size() - 1), base = step * state_.size();
        ++cycles[step];
        for (uint64_t node = 0; node < state_.size(); ++node) {
            busy[base + node] += state_[node] == BUSY;
            stalled[base + node] += state_[node] == STALLED;
        }
    }
};
