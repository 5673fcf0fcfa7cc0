// The edges of a network in a run: when tokens enter and leave each FIFO. Included by streams.h of stream_bench.cpp.
//
// That defines LINKS, the number of edges, and ADJUSTABLE where the design has the input `limits`.
#pragma once

// As `_Links` of network_simulator.py. first: LINKS + 1, where the times of an edge begin in `sent`, `taken`.
struct Links {
    const uint64_t* first;
    uint64_t *sent, *taken;    // cycles
    uint64_t *pushed, *popped; // tokens, by edge
    uint64_t* peak;            // most tokens inside, by edge
    const uint32_t* limits;    // by edge
    uint8_t *into, *out_of;    // the last cycle, by edge: valid + 2 * ready
    uint64_t extra;            // 1 + an edge that moves more tokens than expected, or 0

    void start(Vdesign& design) {
        for (int k = 0; k < LINKS; ++k) pushed[k] = popped[k] = peak[k] = into[k] = out_of[k] = 0;
        extra = 0;
#ifdef ADJUSTABLE
        for (int k = 0; k < LINKS; ++k) put(design.limits, k, limits[k]);
#endif
    }

    bool observe(Vdesign& design, uint64_t cycle) {
        bool moved = false;
        for (int word = 0; word * 32 < LINKS; ++word) {
            const uint32_t popping = part(design.o_valid, word) & part(design.o_ready, word);
            const uint32_t pushing = part(design.i_valid, word) & part(design.i_ready, word);
            moved |= popping || pushing;
            for (uint32_t bits = popping; bits; bits &= bits - 1) note(32 * word + __builtin_ctz(bits), cycle, taken, popped);
            for (uint32_t bits = pushing; bits; bits &= bits - 1) {
                const int k = 32 * word + __builtin_ctz(bits);
                note(k, cycle, sent, pushed);
                if (pushed[k] - popped[k] > peak[k]) peak[k] = pushed[k] - popped[k];
            }
        }
        if (!moved)
            for (int k = 0; k < LINKS; ++k) {
                into[k] = bit(design.i_valid, k) + 2 * bit(design.i_ready, k);
                out_of[k] = bit(design.o_valid, k) + 2 * bit(design.o_ready, k);
            }
        return moved;
    }

    bool left() const {
        for (int k = 0; k < LINKS; ++k)
            if (popped[k] < first[k + 1] - first[k]) return true;
        return false;
    }

private:
    void note(int k, uint64_t cycle, uint64_t* times, uint64_t* count) {
        const uint64_t place = first[k] + count[k]++;
        if (place < first[k + 1]) times[place] = cycle;
        else extra = k + 1;
    }

    template <typename T>
    static uint32_t part(const T& value, int word) { return static_cast<uint32_t>(static_cast<uint64_t>(value) >> 32 * word); }
    template <std::size_t N>
    static uint32_t part(const VlWide<N>& value, int word) { return value[word]; }
    template <typename T>
    static int bit(const T& value, int k) { return part(value, k / 32) >> (k % 32) & 1; }

    // limits: 16 bits an edge
    template <typename T>
    static void put(T& value, int k, uint32_t limit) {
        const int shift = 16 * k;
        value = static_cast<T>((static_cast<uint64_t>(value) & ~(0xffffull << shift)) | static_cast<uint64_t>(limit) << shift);
    }
    template <std::size_t N>
    static void put(VlWide<N>& value, int k, uint32_t limit) {
        const int shift = 16 * (k % 2);
        value[k / 2] = (value[k / 2] & ~(0xffffu << shift)) | limit << shift;
    }
};
