#include "pool.h"

#include <sched.h>

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {

namespace {

// Waiting threads spin, then yield, then sleep. A hand-off takes a fraction of a microsecond, waking a sleeper some 50;
// between two steps of a running engine lie about 100.
constexpr int SPINS = 2000;
constexpr auto AWAKE = std::chrono::microseconds(300);

// Yielding gives the core to another process (the frontend, with the tokens of the last step) while this thread has no
// share; otherwise that process would preempt a thread that has one, and all others would wait for that share.
constexpr auto GIVES_WAY_EVERY = std::chrono::microseconds(100);

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int threads) {
    for (int thread = 1; thread < threads; ++thread) helpers_.emplace_back([this, thread] { help(thread); });
}

Pool::~Pool() {
    closing_.store(true);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    for (std::thread& helper : helpers_) helper.join();
    delete[] states_.load();
    for (Stage* states : outgrown_) delete[] states;
}

void Pool::run(int stages, const int32_t* shares, Body body, void* context) {
    if (stages > capacity_) {
        if (Stage* old = states_.load()) outgrown_.push_back(old);
        capacity_ = stages;
        states_.store(new Stage[static_cast<size_t>(stages)]);
    }
    Stage* states = states_.load(std::memory_order_relaxed);
    const uint32_t run = run_.load(std::memory_order_relaxed) + 1;
    for (int stage = 0; stage < stages; ++stage) {
        // The ticket first: a late helper that reads the new number of shares must not get one on the old ticket.
        states[stage].ticket.store(static_cast<uint64_t>(run) << 32, std::memory_order_relaxed);
        states[stage].shares.store(shares[stage], std::memory_order_release);
        states[stage].done.store(0, std::memory_order_relaxed);
    }
    body_.store(body, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    current_.store(0, std::memory_order_relaxed);
    stages_.store(stages, std::memory_order_release);  // after `states_`: a late helper must not look beyond its end
    run_.store(run, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    work(run, 0);
}

void Pool::work(uint32_t run, int thread) {
    const int stages = stages_.load(std::memory_order_acquire);
    Stage* states = states_.load(std::memory_order_relaxed);
    const Body body = body_.load(std::memory_order_relaxed);
    void* context = context_.load(std::memory_order_relaxed);
    auto gives_way_at = std::chrono::steady_clock::now() + GIVES_WAY_EVERY;
    // A helper that begins at a later stage sees what the stages before have written: `current_` is released after them.
    for (int number = thread == 0 ? 0 : current_.load(std::memory_order_acquire); number < stages; ++number) {
        if (std::chrono::steady_clock::now() >= gives_way_at) {
            sched_yield();
            gives_way_at = std::chrono::steady_clock::now() + GIVES_WAY_EVERY;
        }
        if (run_.load(std::memory_order_acquire) != run) return;  // late: what was read is no longer valid
        Stage& stage = states[number];
        int share = 0;
        while (take(stage, run, share)) {
            body(context, number, share, thread);
            stage.done.fetch_add(1, std::memory_order_acq_rel);
        }
        const int shares = stage.shares.load(std::memory_order_relaxed);
        for (int spins = 0; stage.done.load(std::memory_order_acquire) < shares; ++spins) {
            if (run_.load(std::memory_order_acquire) != run) return;
            if (spins < SPINS) {
                relax();
            } else {
                sched_yield();
            }
        }
        if (thread == 0) current_.store(number + 1, std::memory_order_release);
    }
}

bool Pool::take(Stage& stage, uint32_t run, int& share) {
    uint64_t ticket = stage.ticket.load(std::memory_order_acquire);
    do {
        share = static_cast<int>(ticket & 0xFFFFFFFF);
        if (ticket >> 32 != run || share >= stage.shares.load(std::memory_order_acquire)) return false;
    } while (!stage.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel));
    return true;
}

void Pool::help(int thread) {
    uint32_t seen = 0;
    while (wait_for_run(seen)) {
        seen = run_.load(std::memory_order_acquire);
        work(seen, thread);
    }
}

bool Pool::wait_for_run(uint32_t seen) {
    const auto news = [this, seen] { return run_.load(std::memory_order_seq_cst) != seen || closing_.load(); };
    for (int spins = 0; spins < SPINS; ++spins) {
        if (news()) return !closing_.load();
        relax();
    }
    const auto sleep_at = std::chrono::steady_clock::now() + AWAKE;
    while (std::chrono::steady_clock::now() < sleep_at) {
        if (news()) return !closing_.load();
        sched_yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, news);
    asleep_.fetch_sub(1, std::memory_order_relaxed);
    return !closing_.load();
}

}  // namespace penstock
