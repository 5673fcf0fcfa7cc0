// Runs of graphs whose blocks are models of their own. Called by sim/network_models.py.
//
// models.h includes the models and defines KINDS(X): X(number, reset), and PINS_<number>(X): X(input, stream)
// for every stream, inputs first.

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "models.h"
#include "pause.h"

namespace {

// Verilator keeps a payload as little-endian bytes, whatever its width.
struct Pins {
    bool input;
    void* payload;
    std::size_t bytes;
    CData *valid, *ready;
};

struct Model {
    virtual ~Model() = default;
    virtual void clock(bool high) = 0;
    virtual void reset(bool on) = 0;
    std::vector<Pins> pins;
};

#define PIN(is_input, stream) \
    pins.push_back({is_input, &top.stream##___05Fpayload, sizeof top.stream##___05Fpayload, \
                    &top.stream##___05Fvalid, &top.stream##___05Fready});
#define RESET_0(value)
#define RESET_1(value) top.rst = value;
#define KIND(number, has_reset) \
    struct Model##number : Model { \
        explicit Model##number(VerilatedContext& context) : top(&context, "block") { PINS_##number(PIN) } \
        ~Model##number() override { top.final(); } \
        void clock(bool high) override { top.clk = high; top.eval(); } \
        void reset(bool on) override { RESET_##has_reset(on) (void)on; } \
        Vkind##number top; \
    };
KINDS(KIND)

std::unique_ptr<Model> make(int kind, VerilatedContext& context) {
    switch (kind) {
#define CASE(number, has_reset) case number: return std::make_unique<Model##number>(context);
        KINDS(CASE)
    }
    return nullptr;
}

enum Kind { FINE, STUCK, TOO_MANY, LATE };

// As `_Block` of network_models.py. limit: how many tokens a queue may hold; 0 for a kernel.
struct Block {
    uint64_t kind, limit, inside, peak;
};

// As `_Wire`: a stream from a pin of a block to one of another; -1 is the world outside, which has the tokens.
struct Wire {
    int64_t source, source_pin, target, target_pin;
    uint32_t* tokens;
    uint64_t* cycles;
    uint64_t words, count, moved;
    uint8_t valid, ready, waits;
};

struct Outcome {
    uint64_t kind, wire, cycle;
};

class Bench {
public:
    Bench(uint64_t blocks, Block* block, uint64_t wires, Wire* wire, uint64_t seed, double sources, double sinks)
        : blocks(blocks), block(block), wires(wires), wire(wire), random(seed) {
        Verilated::threadContextp(&context);
        context.randReset(2);
        context.randSeed(static_cast<int>(seed % 0x7fffffff) + 1);
        for (uint64_t b = 0; b < blocks; ++b) {
            models.push_back(make(static_cast<int>(block[b].kind), context));
            wired.emplace_back(models[b]->pins.size());
        }
        for (uint64_t w = 0; w < wires; ++w) {
            if (wire[w].source >= 0) wired[wire[w].source][wire[w].source_pin] = &wire[w];
            if (wire[w].target >= 0) wired[wire[w].target][wire[w].target_pin] = &wire[w];
            pauses.emplace_back(random, wire[w].source < 0 ? sources : wire[w].target < 0 ? sinks : 0.0);
            pauses[w].draw(wire[w]);
        }
        for (auto& model : models) {
            for (const Pins& pin : model->pins) (pin.input ? *pin.valid : *pin.ready) = 0;
            model->reset(true);
            for (int edge = 0; edge < 4; ++edge) model->clock(edge & 1);
            model->reset(false);
        }
    }
    ~Bench() {
        Verilated::threadContextp(&context);
        models.clear();
    }

    Outcome run(uint64_t deadline, uint64_t watchdog) {
        for (uint64_t cycle = 0, last = 0; left(); ++cycle) {
            for (uint64_t b = 0; b < blocks; ++b) forward(b);
            for (uint64_t b = blocks; b-- > 0;) backward(b);
            for (uint64_t w = 0; w < wires; ++w)
                if (wire[w].valid && wire[w].ready) {
                    last = cycle;
                    if (!observe(w, cycle)) return {TOO_MANY, w, cycle};
                }
            for (auto& model : models) model->clock(true);
            if (left() && cycle >= deadline) return {LATE, 0, cycle};
            if (cycle - last >= watchdog) return {STUCK, 0, cycle};
        }
        return {FINE, 0, 0};
    }

private:
    const Pins& from(const Wire& w) const { return models[w.source]->pins[w.source_pin]; }

    // `valid` never depends on `ready`: it is known after one pass along the streams.
    void forward(uint64_t b) {
        Model& model = *models[b];
        for (std::size_t p = 0; p < model.pins.size(); ++p) {
            const Pins& pin = model.pins[p];
            if (!pin.input) continue;
            Wire& w = *wired[b][p];
            if (w.source >= 0) {
                w.valid = *from(w).valid;
                std::memcpy(pin.payload, from(w).payload, pin.bytes);
            } else {
                w.valid = pauses[&w - wire].passes() && w.moved < w.count;
                if (w.valid) std::memcpy(pin.payload, w.tokens + w.moved * w.words, pin.bytes);
            }
            *pin.valid = w.valid;
        }
        model.clock(false);
    }

    // `ready`, against the streams. A queue with a limit looks full, as one of that depth would.
    void backward(uint64_t b) {
        Model& model = *models[b];
        bool popped = false;
        for (std::size_t p = 0; p < model.pins.size(); ++p) {
            const Pins& pin = model.pins[p];
            if (pin.input) continue;
            Wire& w = *wired[b][p];
            if (w.target < 0) {
                w.valid = *pin.valid;
                w.ready = pauses[&w - wire].passes() && !w.waits;
                if (w.valid) w.waits = 0;
            }
            *pin.ready = w.ready;
            popped = w.valid && w.ready;
        }
        const uint64_t limit = block[b].limit;
        const bool allowed = !limit || block[b].inside < limit || (limit == 1 && popped);
        if (!allowed) *model.pins[0].valid = 0;
        model.clock(false);
        for (std::size_t p = 0; p < model.pins.size(); ++p)
            if (model.pins[p].input) wired[b][p]->ready = *model.pins[p].ready && allowed;
    }

    bool observe(uint64_t number, uint64_t cycle) {
        Wire& w = wire[number];
        if (w.moved == w.count) return false;
        if (w.target < 0) std::memcpy(w.tokens + w.moved * w.words, from(w).payload, from(w).bytes);
        w.cycles[w.moved++] = cycle;
        pauses[number].draw(w);
        // wires that leave queues stand before those that enter
        if (w.source >= 0 && block[w.source].limit) --block[w.source].inside;
        if (w.target >= 0 && block[w.target].limit) {
            Block& queue = block[w.target];
            if (++queue.inside > queue.peak) queue.peak = queue.inside;
        }
        return true;
    }

    bool left() const {
        for (uint64_t w = 0; w < wires; ++w)
            if (wire[w].moved < wire[w].count) return true;
        return false;
    }

    uint64_t blocks;
    Block* block;
    uint64_t wires;
    Wire* wire;
    std::mt19937_64 random;
    VerilatedContext context;
    std::vector<std::unique_ptr<Model>> models;
    std::vector<std::vector<Wire*>> wired;  // by block and pin
    std::vector<Pause> pauses;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void simulate(
    uint64_t blocks, Block* block, uint64_t wires, Wire* wire, uint64_t seed, double sources, double sinks, uint64_t deadline,
    uint64_t watchdog, Outcome* outcome) {
    *outcome = Bench(blocks, block, wires, wire, seed, sources, sinks).run(deadline, watchdog);
}
