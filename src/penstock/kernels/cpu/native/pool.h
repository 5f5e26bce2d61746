// A pool of threads that go through the stages of a job together.
//
// A stage has shares, which any thread may take; a stage begins when all shares of the one before are done. Stages wait
// for work, not for threads: one that has lost its core, or is still asleep, delays the others only if it has taken a
// share. The thread that calls `run` is one of the pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock {

class Pool {
  public:
    using Body = void (*)(void* context, int stage, int share, int thread);

    explicit Pool(int threads);
    ~Pool();

    int threads() const { return static_cast<int>(helpers_.size()) + 1; }

    // Calls body(context, stage, share, thread) for every share of every stage. shares[stage] may be 0.
    void run(int stages, const int32_t* shares, Body body, void* context);

  private:
    // One cache line each: `ticket` is the number of the run in the upper half, the next share to take in the lower.
    struct alignas(64) Stage {
        std::atomic<uint64_t> ticket{0};
        std::atomic<int32_t> shares{0};
        std::atomic<int32_t> done{0};
    };

    void help(int thread);
    void work(uint32_t run, int thread);
    static bool take(Stage& stage, uint32_t run, int& share);
    bool wait_for_run(uint32_t seen);

    // The job. Late helpers may read it half written: what they read counts only if they still get a share of that run.
    std::atomic<int> stages_{0};
    std::atomic<Body> body_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<Stage*> states_{nullptr};
    int capacity_ = 0;
    std::vector<Stage*> outgrown_;  // kept, because a late helper may still read them

    alignas(64) std::atomic<uint32_t> run_{0};
    alignas(64) std::atomic<int> current_{0};  // stage that the caller is at: where a late helper begins
    alignas(64) std::atomic<int> asleep_{0};
    std::atomic<bool> closing_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> helpers_;
};

}  // namespace penstock
