// Counts the busy and stalled cycles of nodes in each step of a run, and samples the run in windows of equal length.
// A step is one phase in one walk of its section. A window lies within one step.
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
// If a run fills all windows, they become twice as long: neighbours of the same step are joined.
class Profile {
  public:
    std::vector<uint64_t> cycles, busy, stalled;  // cycles: by step; busy, stalled: by step and node

    // The windows, one row each: its step, its cycles, the busy cycles of all nodes, their stalled cycles, the growth
    // of all counters, and the greatest level of each FIFO. A FIFO is a pair of sides, "i" and "o".
    const std::vector<uint64_t>& windows() const { return rows_; }
    uint64_t width() const { return 2 + 2 * state_.size() + counters_.size() + levels_.size(); }

    // Connect to the pin of the top module that is high while the hardware counts. Returns false if the model does
    // not show it.
    bool begin(const VerilatedContext& context, const char* top, const char* pin, uint64_t nodes, uint64_t steps) {
        counting_ = find(context, top, pin);
        active_ = false, current_ = 0, surplus_ = 0;
        sides_.clear(), counters_.clear(), levels_.clear(), rows_.clear();
        length_ = 1, most_ = MOST, counted_ = false;
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
        if (sides_.size() % 2 == 0) levels_.push_back(0);
        found.fifo = levels_.size() - 1;
        sides_.push_back(found);
        return true;
    }

    // Add a counter that only grows; it must stay in memory.
    void add_counter(const uint64_t* counter) { counters_.push_back({counter, *counter}); }

    void start() { active_ = true; }
    void stop() { active_ = false; }
    bool active() const { return active_; }

    // Whether exactly the tokens of all steps have passed.
    bool complete() const { return !surplus_ && first_open() == open_.size(); }

    // Call this before the clock edge.
    void step() {
        if (*counting_) count();
        else if (counted_) close();
        counted_ = *counting_;
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
            levels_[side.fifo] += side.waits == STALLED ? 1 : -1;
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
    static constexpr uint64_t MOST = 512;  // windows
    struct Counter {
        const uint64_t* now;
        uint64_t before;  // when the current window began
    };
    struct Side {
        const uint8_t *valid, *ready;
        uint64_t node;
        uint8_t waits;  // the state of its node if only this side offers a token
        const uint64_t* tokens;
        uint64_t step = 0, left = 0, fifo = 0;
    };

    const uint8_t* counting_{};
    std::vector<Side> sides_;
    std::vector<uint64_t> open_;  // by step: number of sides that have tokens to pass
    std::vector<uint8_t> state_;  // by node: state in the previous cycle
    uint64_t current_ = 0, surplus_ = 0;
    std::vector<Counter> counters_;
    std::vector<int64_t> levels_;  // tokens in each FIFO
    std::vector<uint64_t> rows_;   // windows; the last one is the current one
    uint64_t length_ = 1, most_ = MOST;
    bool active_ = false, counted_ = false;  // counted_: whether the hardware counted in the previous cycle

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
        if (rows_.empty() || last()[0] != step || last()[1] == length_) open(step);
        uint64_t *window = last(), *greatest = window + width() - levels_.size();
        ++window[1];
        for (uint64_t node = 0; node < state_.size(); ++node) {
            busy[base + node] += state_[node] == BUSY;
            stalled[base + node] += state_[node] == STALLED;
            window[2 + node] += state_[node] == BUSY;
            window[2 + state_.size() + node] += state_[node] == STALLED;
        }
        for (uint64_t fifo = 0; fifo < levels_.size(); ++fifo)
            greatest[fifo] = std::max(greatest[fifo], uint64_t(std::max<int64_t>(levels_[fifo], 0)));
    }

    uint64_t* last() { return rows_.data() + rows_.size() - width(); }

    // Begin a window.
    void open(uint64_t step) {
        if (counted_) close();
        for (auto& counter : counters_) counter.before = *counter.now;
        if (rows_.size() == most_ * width()) join();
        rows_.resize(rows_.size() + width());
        last()[0] = step;
    }

    // Put what the counters have grown by into the current window.
    void close() {
        uint64_t* growth = last() + 2 + 2 * state_.size();
        for (auto& counter : counters_) *growth++ = *counter.now - counter.before;
    }

    // Make windows twice as long. If the steps of a run are so short that too many windows are left, allow more.
    void join() {
        length_ *= 2;
        uint64_t kept = 0;
        const uint64_t wide = width(), count = rows_.size() / wide;
        for (uint64_t k = 1; k < count; ++k) {
            uint64_t *to = &rows_[kept * wide], *from = &rows_[k * wide];
            if (to[0] != from[0] || to[1] + from[1] > length_) {
                std::copy(from, from + wide, &rows_[++kept * wide]);
                continue;
            }
            for (uint64_t i = 1; i < wide - levels_.size(); ++i) to[i] += from[i];
            for (uint64_t i = wide - levels_.size(); i < wide; ++i) to[i] = std::max(to[i], from[i]);
        }
        rows_.resize((kept + 1) * wide);
        if (4 * (kept + 1) > 3 * most_) most_ *= 2;
    }
};
