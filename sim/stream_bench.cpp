// One run of a component: tokens in, tokens out, stalls, laws, watchdog. Called by sim/stream_simulator.py.
//
// streams.h defines PORTS(X): X(number, input, payload, valid, ready) for every stream, and RESET(value).

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "Vdesign.h"
#include "streams.h"

#ifdef LINKS
#include "network_links.h"
#else
// Edges inside of the component to watch: none.
struct Links {
    uint64_t late = 0;
    void start(Vdesign&) {}
    bool observe(Vdesign&, uint64_t) { return false; }
    bool left() const { return false; }
};
#endif

namespace {

enum Kind { FINE, STUCK, TOO_MANY, VALID_FELL, PAYLOAD_CHANGED };

// What Python sees of a stream; as `_Port` of stream_simulator.py. `held`, `now`: payloads of one token.
struct Port {
    uint32_t *tokens, *held, *now;
    uint64_t *cycles, *offered;
    uint64_t words, count, moved, offers;
    uint8_t valid, ready, waits;
};

struct Outcome {
    uint64_t kind, port, cycle, last;
};

// A payload of any width as 32-bit words.
template <typename T>
void set(T& signal, const uint32_t* words) {
    signal = words[0];
    if constexpr (sizeof(T) == 8) signal |= static_cast<T>(words[1]) << 32;
}
template <std::size_t N>
void set(VlWide<N>& signal, const uint32_t* words) {
    for (std::size_t i = 0; i < N; ++i) signal[i] = words[i];
}
template <typename T>
void get(const T& signal, uint32_t* words) {
    words[0] = static_cast<uint32_t>(signal);
    if constexpr (sizeof(T) == 8) words[1] = static_cast<uint32_t>(signal >> 32);
}
template <std::size_t N>
void get(const VlWide<N>& signal, uint32_t* words) {
    for (std::size_t i = 0; i < N; ++i) words[i] = signal[i];
}

// The pauses of sim.ports.Stalls.
class Pause {
public:
    Pause(std::mt19937_64& random, double chance) : random(random), chance(chance) {}
    void draw(Port& port) {
        if (chance == 0 || !hit(chance)) return;
        cycles = hit(1 / 16.0) ? 5 + random() % 36 : 1 + random() % 4;
        port.waits = hit(0.25);
    }
    bool passes() { return cycles == 0 || (--cycles, false); }
    void clear() { cycles = 0; }

private:
    bool hit(double probability) { return std::uniform_real_distribution<>(0, 1)(random) < probability; }
    std::mt19937_64& random;
    double chance;
    uint64_t cycles = 0;
};

class Bench {
public:
    Bench(Port* ports, Links& links, uint64_t seed, double sources, double sinks, Outcome& outcome)
        : ports(ports), links(links), outcome(outcome), random(seed) {
        context.randReset(2);  // registers that nothing resets begin anyhow
        context.randSeed(static_cast<int>(seed % 0x7fffffff) + 1);
        design = std::make_unique<Vdesign>(&context, "top");
#define X(number, input, payload, valid, ready) pauses.emplace_back(random, input ? sources : sinks);
        PORTS(X)
#undef X
        reset(2);
    }
    ~Bench() { design->final(); }

    void run(int64_t reset_at, uint64_t watchdog, uint64_t tail) {
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
            outcome.last = last;
            if (outcome.kind != FINE || links.late) return;
        }
    }

private:
    // Cycles of reset, in which no port does anything; then nothing has moved.
    void reset(int cycles) {
        int k = 0;
#define X(number, input, payload, valid, ready) \
    if (input) design->valid = 0; else design->ready = 0; \
    ports[k].moved = ports[k].offers = ports[k].waits = 0; \
    pauses[k].clear(); \
    pauses[k].draw(ports[k]); \
    ++k;
        PORTS(X)
#undef X
        holding.assign(k, false);
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
#define X(number, input, payload, valid, ready) \
    if (input) drive_source(number, design->payload, design->valid); \
    else drive_sink(number, design->ready);
        PORTS(X)
#undef X
        design->clk = 0;
        design->eval();
        bool moved = false;
#define X(number, input, payload, valid, ready) \
    get(design->payload, ports[number].now); \
    moved |= observe(number, input, design->valid, design->ready, cycle);
        PORTS(X)
#undef X
        moved |= links.observe(*design, cycle);
        design->clk = 1;
        design->eval();
        return moved;
    }

    template <typename T>
    void drive_source(int number, T& payload, CData& valid) {
        Port& port = ports[number];
        valid = pauses[number].passes() && port.moved < port.count;
        if (valid) set(payload, port.tokens + port.moved * port.words);
    }

    void drive_sink(int number, CData& ready) { ready = pauses[number].passes() && !ports[number].waits; }

    bool observe(int number, bool input, bool valid, bool ready, uint64_t cycle) {
        Port& port = ports[number];
        const uint64_t bytes = 4 * port.words;
        port.valid = valid;
        port.ready = ready;
        if (!input) {
            if (holding[number] && !valid) outcome = {VALID_FELL, static_cast<uint64_t>(number), cycle, 0};
            if (holding[number] && valid && std::memcmp(port.held, port.now, bytes))
                outcome = {PAYLOAD_CHANGED, static_cast<uint64_t>(number), cycle, 0};
            if (outcome.kind != FINE) return false;
            if (valid && port.offers == port.moved && port.moved < port.count) port.offered[port.offers++] = cycle;
            holding[number] = valid && !ready;
            if (valid) std::memcpy(port.held, port.now, bytes), port.waits = 0;
        }
        if (!valid || !ready) return false;
        if (port.moved == port.count) {
            outcome = {TOO_MANY, static_cast<uint64_t>(number), cycle, 0};
            return true;
        }
        if (!input) std::memcpy(port.tokens + port.moved * port.words, port.now, bytes);
        port.cycles[port.moved++] = cycle;
        pauses[number].draw(port);
        return true;
    }

    bool left() const {
#define X(number, input, payload, valid, ready) \
    if (ports[number].moved < ports[number].count) return true;
        PORTS(X)
#undef X
        return links.left();
    }

    Port* ports;
    Links& links;
    Outcome& outcome;
    std::mt19937_64 random;
    VerilatedContext context;
    std::unique_ptr<Vdesign> design;
    std::vector<Pause> pauses;
    std::vector<bool> holding;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) void simulate(
    Port* ports, Links* links, uint64_t seed, double sources, double sinks, int64_t reset_at, uint64_t watchdog, uint64_t tail,
    Outcome* outcome) {
    *outcome = {FINE, 0, 0, 0};
    Links none{};
    Bench(ports, links ? *links : none, seed, sources, sinks, *outcome).run(reset_at, watchdog, tail);
}
