// The pauses of `Stalls`. If the field `waits` of a port is set, its sink is not ready before it sees `valid`.
#pragma once

#include <cstdint>
#include <random>

class Pause {
public:
    Pause(std::mt19937_64& random, double chance) : random(random), chance(chance) {}
    template <typename Port>
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
