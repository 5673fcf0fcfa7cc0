// The clock that kernels of one card share.
//
// A kernel that waits for something lets time pass: it does a cycle for itself and for every other kernel that works.
// A kernel that waits for a start is skipped, because nothing would change in it. Simulation therefore takes only the
// time of the working kernels, and these stay in step. Each kernel comes from its own library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

struct Clock {
    struct Kernel {
        void* device;
        bool (*works)(void*);
        void (*step)(void*);
    };

    std::recursive_mutex turn;
    uint64_t now = 0;

    void join(Kernel kernel) { kernels_.push_back(kernel); }

    void leave(void* device) {
        auto gone = [device](auto& kernel) { return kernel.device == device; };
        kernels_.erase(std::remove_if(kernels_.begin(), kernels_.end(), gone), kernels_.end());
    }

    // Do a cycle. asking: the kernel that waits.
    void tick(void* asking) {
        ++now;
        for (auto& kernel : kernels_)
            if (kernel.device == asking || kernel.works(kernel.device)) kernel.step(kernel.device);
    }

  private:
    std::vector<Kernel> kernels_;
};
