// An HBM pseudo-channel behind an AXI master. It follows the laws in memory.py step by step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "verilated.h"

constexpr unsigned BEAT = 64, MAX_BURST = 64, WRITE_QUEUE = 64;
constexpr uint8_t DECERR = 3;
enum Kind { READ_TIME, WRITE_TIME, AR_GAP, AW_GAP, W_GAP, R_GAP, KINDS };

using Beat = VlWide<16>;

// Pointers to the pins of a master in the model of the design. Missing pins point at `absent`.
struct MasterPins {
    CData absent = 0;
    CData *arvalid{}, *arready{}, *arlen{}, *arid{}, *arsize{}, *arburst{};
    QData* araddr{};
    CData *rvalid{}, *rready{}, *rid{}, *rresp{}, *rlast{};
    Beat* rdata{};
    CData *awvalid{}, *awready{}, *awlen{}, *awid{}, *awsize{}, *awburst{};
    QData* awaddr{};
    CData *wvalid{}, *wready{}, *wlast{};
    QData* wstrb{};
    Beat* wdata{};
    CData *bvalid{}, *bready{}, *bid{}, *bresp{};
};

struct Model {
    uint64_t numerator, denominator, latency, outstanding, delays, seed;
};

// delay: cycles; all ones for a response that never comes. For a read burst: the delay that its next beat has already
// waited for.
struct Burst {
    uint64_t address, time;
    uint32_t beats;
    uint8_t id, response;
    uint64_t delay;
};

struct Fault {
    uint8_t response;
    uint64_t delay;
};

inline uint64_t later(uint64_t time, uint64_t delay) { return ~delay ? time + delay : delay; }

inline uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// A region of the card's memory. The host owns it, and the masters of several kernels may access it.
struct Region {
    uint8_t* data;
    uint64_t size;
};

class Channel {
  public:
    MasterPins pins;
    std::map<uint64_t, Region> buffers;  // by start address
    std::map<uint64_t, Fault> bad_reads, bad_writes;
    std::string error;                   // the master's first breach of a law
    uint64_t beats_read = 0, beats_written = 0;

    void configure(unsigned index, const Model& model) {
        index_ = index;
        model_ = model;
        reset();
    }

    void reset() {
        credit_ = model_.numerator + model_.denominator;
        turn_ = 0;
        reads_.clear(), writes_.clear(), responses_.clear(), data_.clear();
        std::fill_n(gaps_, KINDS, 0), std::fill_n(counts_, KINDS, 0);
        ar_ = aw_ = Held{}, w_held_ = false;
        arready_ = rvalid_ = awready_ = wready_ = bvalid_ = false;
        drive();
    }

    // Sample the pins of the master before the clock edge, and compute the values to drive after it.
    void step() {
        check(ar_, "ar", *pins.arvalid, arready_, *pins.araddr, *pins.arlen, *pins.arid, *pins.arsize, *pins.arburst);
        check(aw_, "aw", *pins.awvalid, awready_, *pins.awaddr, *pins.awlen, *pins.awid, *pins.awsize, *pins.awburst);
        check_data();
        for (auto& gap : gaps_) gap -= gap != 0;
        if (rvalid_ && *pins.rready) rvalid_ = false;
        if (bvalid_ && *pins.bready) bvalid_ = false;
        if (*pins.arvalid && arready_) {
            reads_.push_back({*pins.araddr, now_ + model_.latency + delay(READ_TIME), *pins.arlen + 1u, *pins.arid, 0, 0});
            gaps_[AR_GAP] = delay(AR_GAP);
        }
        if (*pins.awvalid && awready_) {
            writes_.push_back({*pins.awaddr, 0, *pins.awlen + 1u, *pins.awid, 0, 0});
            gaps_[AW_GAP] = delay(AW_GAP);
        }
        if (*pins.wvalid && wready_) {
            data_.push_back({*pins.wdata, *pins.wstrb, *pins.wlast != 0});
            gaps_[W_GAP] = delay(W_GAP);
        }

        credit_ = std::min(credit_ + model_.numerator, model_.numerator + model_.denominator);
        const unsigned first = turn_;
        for (unsigned kind : {first, 1 - first})
            if (credit_ >= model_.denominator && (kind ? serve_write() : serve_read())) {
                credit_ -= model_.denominator;
                turn_ = 1 - kind;
            }

        if (!bvalid_ && !responses_.empty() && responses_.front().time <= now_ + 1) {
            bvalid_ = true;
            bid_ = responses_.front().id;
            bresp_ = responses_.front().response;
            responses_.pop_front();
        }
        arready_ = reads_.size() < model_.outstanding && !gaps_[AR_GAP];
        awready_ = writes_.size() < model_.outstanding && !gaps_[AW_GAP];
        wready_ = data_.size() < WRITE_QUEUE && !gaps_[W_GAP];
        ++now_;
    }

    // Drive the values of step() into the registers of the pins, before the clock edge.
    void drive() {
        *pins.arready = arready_, *pins.awready = awready_, *pins.wready = wready_;
        *pins.rvalid = rvalid_, *pins.bvalid = bvalid_;
        if (bvalid_) *pins.bid = bid_, *pins.bresp = bresp_;
        if (shown_) {
            *pins.rid = rid_, *pins.rresp = rresp_, *pins.rlast = rlast_;
            if (source_) std::memcpy(pins.rdata->data(), source_, BEAT);
            else std::memset(pins.rdata->data(), 0, BEAT);
            shown_ = false;
        }
    }

    // The buffer that contains a whole beat at this address, or nullptr.
    const Region* find(uint64_t address, uint64_t& base) {
        if (!last_ || address < last_base_ || address >= last_base_ + last_->size) {
            auto next = buffers.upper_bound(address);
            if (next == buffers.begin()) return nullptr;
            auto& [start, region] = *std::prev(next);
            if (address >= start + region.size) return nullptr;
            last_base_ = start, last_ = &region;
        }
        base = last_base_;
        return last_;
    }

    void forget() { last_ = nullptr, source_ = nullptr; }  // the buffers changed

    bool idle() const { return reads_.empty() && writes_.empty() && responses_.empty() && data_.empty(); }

  private:
    struct Held {
        bool valid;
        uint64_t address;
        uint8_t length, id;
    };
    struct Data {
        Beat beat;
        uint64_t strobe;
        bool last;
    };

    unsigned index_ = 0;
    Model model_{};
    uint64_t now_ = 0, credit_ = 0;
    unsigned turn_ = 0;
    std::deque<Burst> reads_, writes_, responses_;
    std::deque<Data> data_;
    uint64_t gaps_[KINDS]{}, counts_[KINDS]{};
    Held ar_{}, aw_{};
    bool w_held_ = false;
    Data w_{};
    bool arready_ = false, rvalid_ = false, awready_ = false, wready_ = false, bvalid_ = false;
    bool shown_ = false, rlast_ = false;  // shown_: a new R beat to put on the pins
    uint8_t rid_ = 0, rresp_ = 0, bid_ = 0, bresp_ = 0;
    const uint8_t* source_ = nullptr;
    const Region* last_ = nullptr;
    uint64_t last_base_ = 0;

    uint64_t delay(Kind kind) {
        const uint64_t number = counts_[kind]++;
        if (!model_.delays) return 0;
        const uint64_t mixed = mix(model_.seed + mix(uint64_t(index_) << 56 | uint64_t(kind) << 48 | number));
        return mixed & 3 ? 0 : (mixed >> 8) % (model_.delays + 1);
    }

    static Fault fault(const std::map<uint64_t, Fault>& faults, uint64_t address) {
        const auto found = faults.empty() ? faults.end() : faults.find(address);
        return found == faults.end() ? Fault{} : found->second;
    }

    bool serve_read() {
        if (rvalid_ || reads_.empty() || reads_.front().time > now_ + 1 || gaps_[R_GAP]) return false;
        Burst& burst = reads_.front();
        const Fault bad = fault(bad_reads, burst.address);
        if (bad.delay && !burst.delay) {
            burst.time = later(now_ + 1, burst.delay = bad.delay);
            return false;
        }
        burst.delay = 0;
        uint64_t base = 0;
        const auto* region = find(burst.address, base);
        source_ = region ? region->data + (burst.address - base) : nullptr;
        rresp_ = region ? bad.response : DECERR;
        rvalid_ = shown_ = true;
        rid_ = burst.id;
        rlast_ = burst.beats == 1;
        burst.address += BEAT;
        if (!--burst.beats) reads_.pop_front();
        gaps_[R_GAP] = delay(R_GAP);
        ++beats_read;
        return true;
    }

    bool serve_write() {
        if (data_.empty() || writes_.empty()) return false;
        Burst& burst = writes_.front();
        const Data& data = data_.front();
        uint64_t base = 0;
        if (const auto* region = find(burst.address, base)) {
            uint8_t* target = region->data + (burst.address - base);
            const auto* source = reinterpret_cast<const uint8_t*>(data.beat.data());
            if (!~data.strobe) std::memcpy(target, source, BEAT);
            else
                for (unsigned i = 0; i < BEAT; ++i)
                    if (data.strobe >> i & 1) target[i] = source[i];
            const Fault bad = fault(bad_writes, burst.address);
            burst.response = std::max(burst.response, bad.response);
            burst.delay = std::max(burst.delay, bad.delay);
        } else burst.response = DECERR;
        if (data.last != (burst.beats == 1))
            breach("WLAST is %llu with %llu beats of the burst to come", data.last, burst.beats);
        data_.pop_front();
        burst.address += BEAT;
        if (!--burst.beats) {
            burst.time = later(now_ + model_.latency + delay(WRITE_TIME), burst.delay);
            responses_.push_back(burst);
            writes_.pop_front();
        }
        ++beats_written;
        return true;
    }

    void check(Held& held, const char* name, bool valid, bool ready, uint64_t address, uint8_t length, uint8_t id,
               uint8_t size, uint8_t burst) {
        if (held.valid && !(valid && held.address == address && held.length == length && held.id == id))
            breach("%s: what was valid changed before it was taken", name);
        held = {valid && !ready, address, length, id};
        if (!valid) return;
        if (burst != 1 || size != 6 || address % BEAT || length >= MAX_BURST)
            breach("%s: burst %llu, size %llu, address 0x%llx, length %llu", name, burst, size, address, length + 1);
        if (address % 4096 + (length + 1) * BEAT > 4096)
            breach("%s: %llu beats at 0x%llx cross a 4 KiB boundary", name, length + 1, address);
    }

    void check_data() {
        const bool valid = *pins.wvalid;
        if (w_held_ && !(valid && w_.strobe == *pins.wstrb && w_.last == (*pins.wlast != 0) &&
                         !std::memcmp(w_.beat.data(), pins.wdata->data(), BEAT)))
            breach("%s: what was valid changed before it was taken", "w");
        w_held_ = valid && !wready_;
        if (w_held_) w_ = {*pins.wdata, *pins.wstrb, *pins.wlast != 0};
    }

    static unsigned long long plain(uint64_t value) { return value; }
    static const char* plain(const char* value) { return value; }

    template <class... Values>
    void breach(const char* format, Values... values) {
        if (!error.empty()) return;
        char text[200];
        std::snprintf(text, sizeof text, format, plain(values)...);
        error = text;
    }
};
