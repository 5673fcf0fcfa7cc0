// A run of a component, with stalls, checks of the laws and a watchdog. streamgen/testing/stream_simulator.py calls it.
//
// streams.h defines PORTS(X): X(number, input, payload, valid, ready) for every stream, and RESET(value).
// With LINKS it also defines the edges inside of the component to watch, a struct Links.

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "Vdesign.h"
#include "pause.h"
#include "streams.h"

#ifndef LINKS
// Edges inside of the component to watch: none.
struct Links {
    void start(Vdesign&) {}
    bool observe(Vdesign&, uint64_t) { return false; }
    bool left() const { return false; }
};
#endif

namespace {

enum Kind { FINE, STUCK, TOO_MANY, VALID_FELL, PAYLOAD_CHANGED, LATE };

// The state of a stream that Python reads: `_Port` of stream_simulator.py. `held`, `now`: payloads of one token.
struct Port {
    uint32_t *tokens, *held, *now;
    uint64_t *cycles, *offered;
    uint64_t words, count, moved, offers;
    uint8_t valid, ready, waits;
};

struct Outcome {
    uint64_t kind, port, cycle, last;
};

// The signals of a stream. Verilator keeps a payload as little-endian bytes, whatever its width.
struct Pins {
    bool input;
    void* payload;
    std::size_t bytes;
    CData *valid, *ready;
};

class Bench {
public:
    Bench(Port* ports, Links& links, uint64_t seed, double sources, double sinks, Outcome& outcome)
        : ports(ports), links(links), outcome(outcome), random(seed) {
        Verilated::threadContextp(&context);
        context.randReset(2);  // registers without a reset begin with random bits
        context.randSeed(static_cast<int>(seed % 0x7fffffff) + 1);
        design = std::make_unique<Vdesign>(&context, "top");
#define X(number, input, payload, valid, ready) \
    pins.push_back({input, &design->payload, sizeof design->payload, &design->valid, &design->ready});
        PORTS(X)
#undef X
        for (const Pins& pin : pins) pauses.emplace_back(random, pin.input ? sources : sinks);
        reset(2);
    }
    // Scopes of Verilator are removed from the thread's context, which another model may have set.
    ~Bench() {
        Verilated::threadContextp(&context);
        design->final();
    }

    void run(int64_t reset_at, int64_t deadline, uint64_t watchdog, uint64_t tail) {
        if (reset_at >= 0) {
            for (uint64_t cycle = 0; cycle < static_cast<uint64_t>(reset_at); ++cycle) {
                step(cycle);
                if (outcome.kind != FINE) return;
            }
            reset(1);
        }
        for (uint64_t cycle = 0, last = 0; left() || cycle - last <= tail; ++cycle) {
            if (step(cycle)) {
                last = cycle;
            } else if (left() && cycle - last >= watchdog && outcome.kind == FINE) {
                outcome = {STUCK, 0, cycle, last};
            }
            if (outcome.kind == FINE && deadline >= 0 && cycle >= static_cast<uint64_t>(deadline) && left())
                outcome = {LATE, 0, cycle, last};
            outcome.last = last;
            if (outcome.kind != FINE) return;
        }
    }

private:
    // Do cycles of reset, in which no port is active. After them, no token has moved.
    void reset(int cycles) {
        for (std::size_t k = 0; k < pins.size(); ++k) {
            (pins[k].input ? *pins[k].valid : *pins[k].ready) = 0;
            ports[k].moved = ports[k].offers = ports[k].waits = 0;
            pauses[k].clear();
            pauses[k].draw(ports[k]);
        }
        holding.assign(pins.size(), false);
        links.start(*design);
        RESET(1);
        for (int cycle = 0; cycle < cycles; ++cycle) clock();
        RESET(0);
    }

    void clock() {
        design->clk = 0;
        design->eval();
        design->clk = 1;
        design->eval();
    }

    bool step(uint64_t cycle) {
        for (std::size_t k = 0; k < pins.size(); ++k) drive(k);
        design->clk = 0;
        design->eval();
        bool moved = false;
        for (std::size_t k = 0; k < pins.size(); ++k) moved |= observe(k, cycle);
        moved |= links.observe(*design, cycle);
        design->clk = 1;
        design->eval();
        return moved;
    }

    void drive(std::size_t number) {
        Port& port = ports[number];
        const Pins& pin = pins[number];
        const bool passes = pauses[number].passes();
        if (!pin.input) {
            *pin.ready = passes && !port.waits;
            return;
        }
        *pin.valid = passes && port.moved < port.count;
        if (*pin.valid) std::memcpy(pin.payload, port.tokens + port.moved * port.words, pin.bytes);
    }

    bool observe(std::size_t number, uint64_t cycle) {
        Port& port = ports[number];
        const bool input = pins[number].input, valid = *pins[number].valid, ready = *pins[number].ready;
        const uint64_t bytes = 4 * port.words;
        if (!input) std::memcpy(port.now, pins[number].payload, pins[number].bytes);
        port.valid = valid;
        port.ready = ready;
        if (!input) {
            if (holding[number] && !valid) outcome = {VALID_FELL, number, cycle, 0};
            if (holding[number] && valid && std::memcmp(port.held, port.now, bytes))
                outcome = {PAYLOAD_CHANGED, number, cycle, 0};
            if (outcome.kind != FINE) return false;
            if (valid && port.offers == port.moved && port.moved < port.count) port.offered[port.offers++] = cycle;
            holding[number] = valid && !ready;
            if (valid) std::memcpy(port.held, port.now, bytes), port.waits = 0;
        }
        if (!valid || !ready) return false;
        if (port.moved == port.count) {
            outcome = {TOO_MANY, number, cycle, 0};
            return true;
        }
        if (!input) std::memcpy(port.tokens + port.moved * port.words, port.now, bytes);
        port.cycles[port.moved++] = cycle;
        pauses[number].draw(port);
        return true;
    }

    bool left() const {
        for (std::size_t k = 0; k < pins.size(); ++k)
            if (ports[k].moved < ports[k].count) return true;
        return links.left();
    }

    Port* ports;
    Links& links;
    Outcome& outcome;
    std::mt19937_64 random;
    VerilatedContext context;
    std::unique_ptr<Vdesign> design;
    std::vector<Pins> pins;
    std::vector<Pause> pauses;
    std::vector<bool> holding;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void simulate(
    Port* ports, Links* links, uint64_t seed, double sources, double sinks, int64_t reset_at, int64_t deadline,
    uint64_t watchdog, uint64_t tail, Outcome* outcome) {
    *outcome = {FINE, 0, 0, 0};
    Links none{};
    Bench(ports, links ? *links : none, seed, sources, sinks, *outcome).run(reset_at, deadline, watchdog, tail);
}
