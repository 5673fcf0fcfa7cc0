// The clock that kernels of one card share.
//
// A kernel that lets time pass, as all do that wait for something, makes a cycle for itself and for every other one
// that is at work. One that waits for a start is left alone: nothing would change there. So a card takes the time of
// what works on it, and its kernels are in step while they do. Kernels come from libraries of their own.
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

    // asking: the kernel for which time shall pass.
    void tick(void* asking) {
        ++now;
        for (auto& kernel : kernels_)
            if (kernel.device == asking || kernel.works(kernel.device)) kernel.step(kernel.device);
    }

  private:
    std::vector<Kernel> kernels_;
};
