// The host's side of a Vitis RTL kernel around the Verilated design: clock, reset, s_axi_control, memory.
// In a cycle, inputs are driven, the design settles with the clock low, and the models sample its pins and drive their
// new values, which registers take at the rising edge (pins.py). The generated design.h names the masters (CHANNELS).
#include <memory>

#include "Vdesign.h"
#include "clock.h"
#include "design.h"
#include "memory.h"
#include "probe.h"
#include "profile.h"
#if VM_TRACE_FST
#include "verilated_fst_c.h"
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct ControlPins {
    CData *awvalid{}, *awready{}, *wvalid{}, *wready{}, *wstrb{}, *bvalid{}, *bready{}, *bresp{};
    CData *arvalid{}, *arready{}, *rvalid{}, *rready{}, *rresp{};
    IData *wdata{}, *rdata{};
    void *awaddr{}, *araddr{};
    unsigned address_bytes = 0;
};

// Point `target` at a pin if the design has it with the right width; otherwise add the problem to `problems`. A pin
// that memory drives has a register in front of it, whose input is called next_ (pins.py).
#define CONNECT(target, input, pin, otherwise)                                         \
    if constexpr (requires { target = &top.input; }) target = &top.input;              \
    else if constexpr (requires { top.input; }) problems += " " #pin " (wrong width)"; \
    else otherwise;
#define REQUIRED(target, pin) CONNECT(target, pin, pin, problems += " " #pin " (missing)")
#define OPTIONAL(target, pin) CONNECT(target, pin, pin, )
#define DRIVEN(target, pin) CONNECT(target, next_##pin, pin, problems += " " #pin " (missing)")
#define MAY_BE_DRIVEN(target, pin) CONNECT(target, next_##pin, pin, )

template <class Design>
std::string connect(Design& top, ControlPins& c) {
    std::string problems;
    REQUIRED(c.awvalid, s_axi_control_awvalid)
    REQUIRED(c.awready, s_axi_control_awready)
    REQUIRED(c.wvalid, s_axi_control_wvalid)
    REQUIRED(c.wready, s_axi_control_wready)
    REQUIRED(c.wdata, s_axi_control_wdata)
    REQUIRED(c.wstrb, s_axi_control_wstrb)
    REQUIRED(c.bvalid, s_axi_control_bvalid)
    REQUIRED(c.bready, s_axi_control_bready)
    REQUIRED(c.bresp, s_axi_control_bresp)
    REQUIRED(c.arvalid, s_axi_control_arvalid)
    REQUIRED(c.arready, s_axi_control_arready)
    REQUIRED(c.rvalid, s_axi_control_rvalid)
    REQUIRED(c.rready, s_axi_control_rready)
    REQUIRED(c.rdata, s_axi_control_rdata)
    REQUIRED(c.rresp, s_axi_control_rresp)
    REQUIRED(c.awaddr, s_axi_control_awaddr)
    REQUIRED(c.araddr, s_axi_control_araddr)
    if constexpr (requires { top.s_axi_control_awaddr; }) c.address_bytes = sizeof top.s_axi_control_awaddr;
    return problems;
}

#define CONNECT_CHANNEL(index, name)                      \
    {                                                     \
        MasterPins& p = channels[index].pins;             \
        p.arid = p.rid = p.awid = p.bid = &p.absent;      \
        p.arsize = p.awsize = &full_width;                \
        p.arburst = p.awburst = &incrementing;            \
        REQUIRED(p.arvalid, name##_arvalid)               \
        DRIVEN(p.arready, name##_arready)                 \
        REQUIRED(p.araddr, name##_araddr)                 \
        REQUIRED(p.arlen, name##_arlen)                   \
        DRIVEN(p.rvalid, name##_rvalid)                   \
        REQUIRED(p.rready, name##_rready)                 \
        DRIVEN(p.rdata, name##_rdata)                     \
        DRIVEN(p.rresp, name##_rresp)                     \
        DRIVEN(p.rlast, name##_rlast)                     \
        REQUIRED(p.awvalid, name##_awvalid)               \
        DRIVEN(p.awready, name##_awready)                 \
        REQUIRED(p.awaddr, name##_awaddr)                 \
        REQUIRED(p.awlen, name##_awlen)                   \
        REQUIRED(p.wvalid, name##_wvalid)                 \
        DRIVEN(p.wready, name##_wready)                   \
        REQUIRED(p.wdata, name##_wdata)                   \
        REQUIRED(p.wstrb, name##_wstrb)                   \
        REQUIRED(p.wlast, name##_wlast)                   \
        DRIVEN(p.bvalid, name##_bvalid)                   \
        REQUIRED(p.bready, name##_bready)                 \
        DRIVEN(p.bresp, name##_bresp)                     \
        OPTIONAL(p.arid, name##_arid)                     \
        MAY_BE_DRIVEN(p.rid, name##_rid)                  \
        OPTIONAL(p.arsize, name##_arsize)                 \
        OPTIONAL(p.arburst, name##_arburst)               \
        OPTIONAL(p.awid, name##_awid)                     \
        MAY_BE_DRIVEN(p.bid, name##_bid)                  \
        OPTIONAL(p.awsize, name##_awsize)                 \
        OPTIONAL(p.awburst, name##_awburst)               \
    }

CData full_width = 6, incrementing = 1;

template <class Design>
std::string connect(Design& top, std::vector<Channel>& channels) {
    std::string problems;
    CHANNELS(CONNECT_CHANNEL)
    return problems;
}

#define COUNT_CHANNEL(index, name) +1
#define NAME_CHANNEL(index, name) #name,
constexpr unsigned CHANNEL_COUNT = 0 CHANNELS(COUNT_CHANNEL);
constexpr const char* NAMES[] = {CHANNELS(NAME_CHANNEL)};
constexpr unsigned RESET_CYCLES = 32, REGISTER_PATIENCE = 10000;

struct Device {
    VerilatedContext context;
    std::unique_ptr<Vdesign> top;
    std::vector<Channel> channels;
    ControlPins control;
    std::shared_ptr<Clock> clock = std::make_shared<Clock>();
    uint64_t cycles = 0;
    bool working = false, stopped = false;  // working: takes part in every cycle of its clock. stopped: by an error
    std::string error;
    std::vector<Probe> probes;
    bool watching = false, differs = false;  // differs: an unexpected token has stopped the run
    struct {
        bool found = false;
        uint64_t probe = 0, cycle = 0;
    } difference;               // kept until the next watch
    std::vector<uint8_t> seen;  // the token that differs
    Profile profile;
#if VM_TRACE_FST
    std::unique_ptr<VerilatedFstC> waves;
    uint64_t waves_zero = 0, waves_first = 0, waves_last = 0;
#endif

    Device() : channels(CHANNEL_COUNT) {
        Verilated::threadContextp(&context);
#if VM_TRACE_FST
        context.traceEverOn(true);
#endif
        top = std::make_unique<Vdesign>(&context, "");
        const std::string problems = connect(*top, control) + connect(*top, channels);
        if (!problems.empty()) error = "the design does not have the pins of the manifest:" + problems;
        join(clock);
    }

    void join(std::shared_ptr<Clock> other) {
        clock->leave(this);
        clock = std::move(other);
        clock->join({this, [](void* it) { return static_cast<Device*>(it)->working; },
                     [](void* it) { static_cast<Device*>(it)->step(); }});
    }

    // Scopes of Verilator are removed from the thread's context, which another device may have set.
    ~Device() {
        clock->leave(this);
        Verilated::threadContextp(&context);
#if VM_TRACE_FST
        waves.reset();
#endif
        top.reset();
    }

    void cycle() {
        top->ap_clk = 0;
        top->eval();
        dump(0);
        if (watching) compare();
        if (profile.active()) profile.step();
        for (auto& channel : channels) channel.step();
        for (auto& channel : channels) channel.drive();
        top->ap_clk = 1;
        top->eval();
        dump(500);
        ++cycles;
    }

    // Probes are in topological order, so the first difference in a cycle is nearest to its cause.
    void compare() {
        for (auto& probe : probes)
            if (!probe.step()) {
                difference = {true, uint64_t(&probe - probes.data()), cycles};
                probe.read(seen.data());
                differs = true, watching = false;
                return;
            }
    }

    // Write the waves of this half of a cycle if a window is open. The unit is a picosecond; a cycle is 1000.
    void dump([[maybe_unused]] unsigned picoseconds) {
#if VM_TRACE_FST
        if (waves && cycles >= waves_first && cycles <= waves_last)
            waves->dump((cycles - waves_zero) * 1000 + picoseconds);
#endif
    }

    // Do a cycle. The kernel stops if a master broke a law or a token differs.
    void step() {
        cycle();
        if (differs) error = "a token differs from the expected one";
        else {
            auto broken = std::find_if(channels.begin(), channels.end(), [](auto& c) { return !c.error.empty(); });
            if (broken == channels.end()) return;
            error = std::string(NAMES[broken - channels.begin()]) + " " + broken->error;
        }
        stopped = true, working = false;
    }

    // Let time pass for all kernels of the clock. Returns false if this kernel has stopped.
    bool run(uint64_t count) {
        while (!stopped && count--) clock->tick(this);
        return !stopped;
    }

    void reset() {
        error.clear();
        watching = differs = stopped = working = false;
        profile.stop();
        top->ap_rst_n = 0;
        *control.awvalid = *control.wvalid = *control.bready = *control.arvalid = *control.rready = 0;
        for (auto& channel : channels) channel.error.clear(), channel.reset();
        for (unsigned i = 0; i < RESET_CYCLES; ++i) cycle();
        for (auto& channel : channels) channel.error.clear(), channel.reset();  // drop errors from before the reset
        top->ap_rst_n = 1;
        run(RESET_CYCLES);
    }

    // Do one AXI4-Lite transaction. Each valid is high until its ready. Handshakes are sampled as in cycle().
    bool write(uint32_t address, uint32_t value) {
        set_address(control.awaddr, address);
        *control.wdata = value;
        *control.wstrb = 15;
        *control.awvalid = *control.wvalid = *control.bready = 1;
        for (unsigned i = 0; i < REGISTER_PATIENCE; ++i) {
            top->ap_clk = 0;
            top->eval();
            const bool aw = *control.awvalid && *control.awready, w = *control.wvalid && *control.wready;
            const bool b = *control.bvalid;
            const unsigned answer = *control.bresp;
            if (!run(1)) return false;
            if (aw) *control.awvalid = 0;
            if (w) *control.wvalid = 0;
            if (b) return *control.bready = 0, answered(answer, address);
        }
        return silent(address);
    }

    bool read(uint32_t address, uint32_t* value) {
        set_address(control.araddr, address);
        *control.arvalid = *control.rready = 1;
        for (unsigned i = 0; i < REGISTER_PATIENCE; ++i) {
            top->ap_clk = 0;
            top->eval();
            const bool ar = *control.arvalid && *control.arready, r = *control.rvalid;
            const unsigned answer = *control.rresp;
            *value = *control.rdata;
            if (!run(1)) return false;
            if (ar) *control.arvalid = 0;
            if (r) return *control.rready = 0, answered(answer, address);
        }
        return silent(address);
    }

    void set_address(void* pin, uint32_t address) {
        const uint64_t value = address;
        std::memcpy(pin, &value, control.address_bytes);  // little-endian
    }

    bool answered(unsigned response, uint32_t address) {
        if (response) error = "register " + std::to_string(address) + " answered " + std::to_string(response);
        return !response;
    }

    bool silent(uint32_t address) {
        error = "s_axi_control did not answer at register " + std::to_string(address);
        return false;
    }
};

}  // namespace

EXPORT Device* device_create() { return new Device; }
EXPORT void device_destroy(Device* device) {
    const auto clock = device->clock;  // outlives the lock
    const std::lock_guard<std::recursive_mutex> guard(clock->turn);
    delete device;
}
EXPORT const char* device_error(Device* device) { return device->error.c_str(); }
EXPORT uint64_t device_cycles(Device* device) { return device->cycles; }
EXPORT uint64_t device_time(Device* device) { return device->clock->now; }
EXPORT void device_work(Device* device, bool on) { device->working = on; }

// Functions that take time are run by one thread at a time, among all threads that use kernels of a clock.
#define IN_TURN(device) const std::lock_guard<std::recursive_mutex> guard((device)->clock->turn);

// Share the clock of another kernel from now on, as all kernels of a card do.
EXPORT void device_join(Device* device, const std::shared_ptr<Clock>* clock) {
    const std::lock_guard<std::recursive_mutex> guard((*clock)->turn);
    device->join(*clock);
}
EXPORT const std::shared_ptr<Clock>* device_clock(Device* device) { return &device->clock; }

EXPORT void device_reset(Device* device) {
    IN_TURN(device)
    device->reset();
}
EXPORT bool device_run(Device* device, uint64_t count) {
    IN_TURN(device)
    return device->run(count);
}
EXPORT bool device_write(Device* device, uint32_t address, uint32_t value) {
    IN_TURN(device)
    return device->write(address, value);
}
EXPORT bool device_read(Device* device, uint32_t address, uint32_t* value) {
    IN_TURN(device)
    return device->read(address, value);
}

EXPORT void device_configure(Device* device, unsigned channel, const Model* model) {
    device->channels[channel].configure(channel, *model);
}

// Run until a register has one of the bits of the mask, and check it every `interval` cycles. Returns 1 if it has one,
// 0 if not yet, -1 after an error.
EXPORT int device_wait(Device* device, uint32_t address, uint32_t mask, uint64_t count, uint64_t interval) {
    IN_TURN(device)
    for (const uint64_t end = device->cycles + count; device->cycles < end;) {
        uint32_t value = 0;
        if (!device->read(address, &value)) return -1;
        if (value & mask) return 1;
        if (!device->run(interval)) return -1;
    }
    return 0;
}

// Let a master access a region of memory, which the host keeps until it is detached; and end this access.
EXPORT void device_attach(Device* device, unsigned channel, uint64_t address, uint8_t* data, uint64_t size) {
    IN_TURN(device)
    auto& owner = device->channels[channel];
    owner.forget();
    owner.buffers[address] = {data, size};
}

EXPORT void device_detach(Device* device, unsigned channel, uint64_t address) {
    IN_TURN(device)
    auto& owner = device->channels[channel];
    owner.forget();
    owner.buffers.erase(address);
}

// Set the fault of the reads and writes of a beat. Without a response and a delay, there is no fault.
EXPORT void device_inject(Device* device, unsigned channel, uint64_t address, unsigned response, uint64_t delay,
                          bool reads, bool writes) {
    auto& owner = device->channels[channel];
    owner.bad_reads.erase(address), owner.bad_writes.erase(address);
    if (!response && !delay) return;
    const Fault fault{uint8_t(response), delay};
    if (reads) owner.bad_reads[address] = fault;
    if (writes) owner.bad_writes[address] = fault;
}

EXPORT bool device_idle(Device* device) {
    return std::all_of(device->channels.begin(), device->channels.end(), [](auto& c) { return c.idle(); });
}

EXPORT void device_traffic(Device* device, unsigned channel, uint64_t* beats_read, uint64_t* beats_written) {
    *beats_read = device->channels[channel].beats_read;
    *beats_written = device->channels[channel].beats_written;
}

// Add a probe at side "i" or "o" of the FIFO in this scope. Returns false if the library was built without its pins.
EXPORT bool device_probe(Device* device, const char* scope, const char* side) {
    return device->probes.emplace_back().connect(device->context, scope, side);
}

// Set the expected tokens of a probe. They must stay in memory until the next call.
EXPORT void device_expect(Device* device, uint64_t probe, const uint8_t* tokens, uint64_t count, uint64_t bytes) {
    device->probes[probe].expect(tokens, count, bytes);
    if (device->seen.size() < bytes) device->seen.resize(bytes);
}

EXPORT void device_watch(Device* device, bool on) {
    device->watching = on;
    if (on) device->difference = {};
}

EXPORT uint64_t device_passed(Device* device, uint64_t probe) { return device->probes[probe].passed; }

// The token that differed, or nullptr.
EXPORT const uint8_t* device_difference(Device* device, uint64_t* probe, uint64_t* cycle) {
    if (!device->difference.found) return nullptr;
    *probe = device->difference.probe, *cycle = device->difference.cycle;
    return device->seen.data();
}

// Begin a profile of `nodes` nodes in `steps` steps. Returns false if the library was built without the pins for it.
EXPORT bool device_profile(Device* device, const char* top, const char* pin, uint64_t nodes, uint64_t steps) {
    return device->profile.begin(device->context, top, pin, nodes, steps);
}

// Add a port of a node: side "i" or "o" of the FIFO in this scope. The tokens of each step must stay in memory.
EXPORT bool device_profile_port(Device* device, const char* scope, const char* side, uint64_t node,
                                const uint64_t* tokens) {
    return device->profile.add(device->context, scope, side, node, tokens);
}

EXPORT void device_profile_start(Device* device) {
    for (auto& channel : device->channels)
        for (auto* beats : {&channel.beats_read, &channel.beats_written}) device->profile.add_counter(beats);
    device->profile.start();
}

// The windows of the profile so far: their numbers, in rows of `width`. They stay until the next cycle.
EXPORT const uint64_t* device_profile_windows(Device* device, uint64_t* numbers, uint64_t* width) {
    const auto& windows = device->profile.windows();
    *numbers = windows.size(), *width = device->profile.width();
    return windows.data();
}

// End the profile and copy its counts. Returns false if other tokens passed than were announced.
EXPORT bool device_profile_end(Device* device, uint64_t* cycles, uint64_t* busy, uint64_t* stalled) {
    auto& profile = device->profile;
    profile.stop();
    std::copy(profile.cycles.begin(), profile.cycles.end(), cycles);
    std::copy(profile.busy.begin(), profile.busy.end(), busy);
    std::copy(profile.stalled.begin(), profile.stalled.end(), stalled);
    return profile.complete();
}

#if VM_TRACE_FST
// Write the waves of the cycles `first` to `last`, counted from `zero`. Returns false if the file cannot be written.
EXPORT bool device_waves(Device* device, const char* path, uint64_t zero, uint64_t first, uint64_t last) {
    Verilated::threadContextp(&device->context);
    device->waves = std::make_unique<VerilatedFstC>();
    device->waves->set_time_unit("1ns");
    device->waves->set_time_resolution("1ps");
    device->top->trace(device->waves.get(), 99);
    device->waves->open(path);
    device->waves_zero = zero, device->waves_first = first, device->waves_last = last;
    return device->waves->isOpen();
}

EXPORT void device_waves_end(Device* device) {
    Verilated::threadContextp(&device->context);
    device->waves.reset();
}
#endif
