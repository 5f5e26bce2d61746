#include "draw.h"

#include <cstring>

#include "kernels.h"
#include "lanes.h"

namespace penstock::PENSTOCK_ISA {
namespace {

constexpr float BANNED = -__builtin_inff();
constexpr int BUCKETS = 1024;
constexpr float DEEP = -24.0f;  // of scores; what lies below has next to no mass, and is looked at only if it must be

inline int left(int64_t count, int64_t at) { return count - at < LANES ? static_cast<int>(count - at) : LANES; }

inline Lanes load_scores(const float* from, int count) { return keep(load_first(from, count), 0, count, BANNED); }

// ln x of positive, normal numbers
Lanes log(Lanes x) {
    float values[LANES], mantissa[LANES], exponent[LANES];
    store(values, x);
    for (int lane = 0; lane < LANES; ++lane) {
        uint32_t bits;
        std::memcpy(&bits, &values[lane], sizeof bits);
        bits -= 0x3F3504F3;  // sqrt(1/2): the mantissa comes to lie between it and sqrt(2)
        exponent[lane] = static_cast<float>(static_cast<int32_t>(bits) >> 23);
        bits = (bits & 0x007FFFFF) + 0x3F3504F3;
        std::memcpy(&mantissa[lane], &bits, sizeof bits);
    }
    const Lanes e = load(exponent), m = load(mantissa) - broadcast(1.0f), square = m * m;
    Lanes p = broadcast(7.0376836292e-2f);
    p = fma(p, m, broadcast(-1.1514610310e-1f));
    p = fma(p, m, broadcast(1.1676998740e-1f));
    p = fma(p, m, broadcast(-1.2420140846e-1f));
    p = fma(p, m, broadcast(1.4249322787e-1f));
    p = fma(p, m, broadcast(-1.6668057665e-1f));
    p = fma(p, m, broadcast(2.0000714765e-1f));
    p = fma(p, m, broadcast(-2.4999993993e-1f));
    p = fma(p, m, broadcast(3.3333331174e-1f));
    Lanes y = p * m * square;
    y = fma(e, broadcast(-2.12194440e-4f), y);
    y = fma(square, broadcast(-0.5f), y);
    return fma(e, broadcast(0.693359375f), m + y);
}

uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9;
    x ^= x >> 27;
    x *= 0x94D049BB133111EB;
    return x ^ x >> 31;
}

// Gumbel noise of sixteen tokens; the arithmetic is told in penstock.sample.reference.noise.
Lanes noise(uint64_t key, const int32_t* tokens) {
    float u[LANES];
    const uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    for (int lane = 0; lane < LANES; ++lane) {
        uint32_t h = static_cast<uint32_t>(tokens[lane]);
        h ^= h >> 16;
        h *= 0x85EBCA6B;
        h ^= h >> 13;
        h *= 0xC2B2AE35;
        h ^= h >> 16;
        h = (h ^ low) * 0x2C1B3C6D + high;
        h ^= h >> 16;
        h *= 0x297A2D39;
        h ^= h >> 15;
        h *= 0x85EBCA6B;
        u[lane] = static_cast<float>(static_cast<int32_t>(h) >> 9) * 0x1p-23f + (0.5f + 0x1p-24f);
    }
    const Lanes zero = broadcast(0.0f);
    return zero - log(zero - log(load(u)));
}

// The largest of score + noise, collected sixteen at a time; of equals the smallest token.
class Best {
  public:
    explicit Best(const DrawParams& params)
        : key_(mix(static_cast<uint64_t>(params.stream) + static_cast<uint64_t>(params.position) * 0x9E3779B97F4A7C15)) {}

    void add(int32_t token, float score) {
        tokens_[count_] = token;
        scores_[count_] = score;
        if (++count_ == LANES) settle();
    }

    // `otherwise`: where all were banned
    int32_t token(int32_t otherwise) {
        settle();
        return found_ ? token_ : otherwise;
    }

  private:
    void settle() {
        for (int lane = count_; lane < LANES; ++lane) tokens_[lane] = 0, scores_[lane] = BANNED;
        float values[LANES];
        store(values, load(scores_) + noise(key_, tokens_));
        for (int lane = 0; lane < count_; ++lane) {
            if (values[lane] < value_ || (values[lane] == value_ && tokens_[lane] > token_)) continue;
            value_ = values[lane];
            token_ = tokens_[lane];
            found_ = true;
        }
        count_ = 0;
    }

    uint64_t key_;
    int count_ = 0;
    int32_t token_ = 0x7FFFFFFF;
    bool found_ = false;
    float value_ = BANNED;
    int32_t tokens_[LANES];
    float scores_[LANES];
};

// Numbers with weights, from the largest down.
struct Heap {
    float* values;
    float* weights;
    int64_t count;

    void sink(int64_t at) {
        while (true) {
            int64_t top = at;
            for (int64_t child = 2 * at + 1; child < 2 * at + 3 && child < count; ++child)
                if (values[child] > values[top]) top = child;
            if (top == at) return;
            swap(values[at], values[top]);
            swap(weights[at], weights[top]);
            at = top;
        }
    }
    void order() {
        for (int64_t at = count / 2; at >= 0; --at) sink(at);
    }
    void pop() {
        values[0] = values[--count];
        weights[0] = weights[count];
        sink(0);
    }
    static void swap(float& a, float& b) {
        const float kept = a;
        a = b;
        b = kept;
    }
};

// Taken in falling order, values are kept while the weight of those before is less than `target`: the last one kept. Only
// values of at least `floor` count, and the largest of all is `top`. Without `weights` each weighs 1. First the weight is
// added up by buckets, then the bucket where it is reached is looked at closely.
float cut_above(const float* values, const float* weights, int64_t count, float floor, float top, double target,
                float* scratch, bool& reached) {
    double sums[BUCKETS] = {};
    const float width = top - floor > 0.0f ? static_cast<float>(BUCKETS - 1) / (top - floor) : 0.0f;
    const auto bucket = [&](float value) { return static_cast<int>((top - value) * width); };
    for (int64_t at = 0; at < count; at += LANES) {
        const int some = left(count, at);
        if (largest(load_scores(values + at, some)) < floor) continue;
        for (int64_t index = at; index < at + some; ++index)
            if (values[index] >= floor) sums[bucket(values[index])] += weights == nullptr ? 1.0 : weights[index];
    }
    double before = 0.0;
    int chosen = 0;
    while (chosen < BUCKETS && before + sums[chosen] < target) before += sums[chosen++];
    reached = chosen < BUCKETS;
    if (!reached) return floor;
    Heap heap{scratch, scratch + count, 0};
    for (int64_t at = 0; at < count; at += LANES) {
        const int some = left(count, at);
        if (largest(load_scores(values + at, some)) < floor) continue;
        for (int64_t index = at; index < at + some; ++index) {
            if (!(values[index] >= floor) || bucket(values[index]) != chosen) continue;
            heap.values[heap.count] = values[index];
            heap.weights[heap.count++] = weights == nullptr ? 1.0f : weights[index];
        }
    }
    heap.order();
    float last = heap.values[0];
    while (heap.count > 0 && before < target) {
        last = heap.values[0];
        before += heap.weights[0];
        heap.pop();
    }
    return last;
}

float cut(const float* values, const float* weights, int64_t count, float lowest, float top, double target,
          float* scratch) {
    bool reached = false;
    if (!(top > BANNED)) return top;  // nothing counts, or logits are not numbers
    const float deep = top + DEEP;
    if (deep > lowest) {
        const float threshold = cut_above(values, weights, count, deep, top, target, scratch, reached);
        if (reached) return threshold;
    }
    float floor = top;  // the smallest that counts
    for (int64_t index = 0; index < count; ++index)
        if (values[index] >= lowest && values[index] > BANNED && values[index] < floor) floor = values[index];
    return cut_above(values, weights, count, floor, top, target, scratch, reached);
}

// e^score where the score is kept, else 0; gives their sum.
double weigh(const float* scores, int64_t count, float lowest, float* weights) {
    double total = 0.0;
    for (int64_t at = 0; at < count; at += LANES) {
        const Lanes x = load_scores(scores + at, left(count, at));
        const Lanes weight = where_less(x, broadcast(lowest), broadcast(0.0f), exp(x));
        store(weights + at, weight);
        total += sum(weight);
    }
    return total;
}

// Keeps of the scores from `lowest` on those nearest to the expected surprise: others become -inf.
void keep_typical(float* scores, int64_t count, float lowest, float typical_p, float* weights, float* nearness,
                  float* scratch) {
    const double total = weigh(scores, count, lowest, weights);
    const float log_total = static_cast<float>(__builtin_log(total));
    double expected = 0.0;  // surprise of a token: log_total - score
    for (int64_t index = 0; index < count; ++index)
        if (weights[index] > 0.0f) expected += weights[index] * static_cast<double>(log_total - scores[index]);
    const float entropy = static_cast<float>(expected / total);
    float top = BANNED;
    for (int64_t index = 0; index < count; ++index) {
        const bool kept = scores[index] >= lowest;
        const float off = scores[index] - log_total + entropy;
        nearness[index] = kept ? (off < 0.0f ? off : -off) : BANNED;
        if (nearness[index] > top) top = nearness[index];
    }
    const float threshold = cut(nearness, weights, count, BANNED, top, typical_p * total, scratch);
    for (int64_t index = 0; index < count; ++index)
        if (!(nearness[index] >= threshold)) scores[index] = BANNED;
}

// Scales and filters: the scores of all tokens to `scratch`, of which those below the result are filtered out. The
// temperature is not 0.
float filter_scores(const float* logits, int64_t vocab, const DrawParams& params, float* scratch) {
    const int64_t size = vocab + LANES;
    float *scores = scratch, *weights = scratch + size, *nearness = scratch + 2 * size, *spare = scratch + 3 * size;
    const float top = logits[table().rows.argmax(logits, vocab)];
    for (int64_t at = 0; at < vocab; at += LANES) {
        const Lanes x = load_scores(logits + at, left(vocab, at));
        store(scores + at, (x - broadcast(top)) / broadcast(params.temperature));
    }
    float lowest = -3.4028235e38f;  // below are the banned alone
    if (params.top_k > 0) lowest = cut(scores, nullptr, vocab, lowest, 0.0f, params.top_k, spare);
    if (params.top_p < 1.0f) {
        const double total = weigh(scores, vocab, lowest, weights);
        lowest = cut(scores, weights, vocab, lowest, 0.0f, params.top_p * total, spare);
    }
    if (params.log_min_p > lowest) lowest = params.log_min_p;
    if (params.typical_p < 1.0f) keep_typical(scores, vocab, lowest, params.typical_p, weights, nearness, spare);
    return lowest;
}

int32_t draw_token(const float* logits, int64_t vocab, const DrawParams& params, float* scratch) {
    if (params.temperature == 0.0f) return static_cast<int32_t>(table().rows.argmax(logits, vocab));
    const float lowest = filter_scores(logits, vocab, params, scratch);
    const float* scores = scratch;
    Best best(params);
    for (int64_t at = 0; at < vocab; at += LANES) {
        const int some = left(vocab, at);
        if (largest(load_scores(scores + at, some)) < lowest) continue;
        for (int64_t index = at; index < at + some; ++index)
            if (scores[index] >= lowest) best.add(static_cast<int32_t>(index), scores[index]);
    }
    return best.token(static_cast<int32_t>(vocab - 1));
}

bool penalised(const DrawParams& params) {
    return params.repetition != 1.0f || params.presence != 0.0f || params.frequency != 0.0f;
}

// As penstock.sample.reference.penalties has it: `repetition` of all tokens so far, the others of the output alone.
void penalise(float* logits, const DrawParams& params, const int32_t* known, float* scratch) {
    int32_t* counts = reinterpret_cast<int32_t*>(scratch);  // [vocab], of tokens in the output; -1: done
    for (int32_t position = 0; position < params.position; ++position) counts[known[position]] = 0;
    for (int32_t position = params.prompt_length; position < params.position; ++position) ++counts[known[position]];
    for (int32_t position = 0; position < params.position; ++position) {
        int32_t& count = counts[known[position]];
        if (count < 0) continue;
        float& x = logits[known[position]];
        x = x < 0.0f ? x * params.repetition : x / params.repetition;
        if (count > 0) x = (x - params.presence) - params.frequency * static_cast<float>(count);
        count = -1;
    }
}

// All but the allowed tokens to -inf.
void mask(float* logits, int64_t vocab, const uint32_t* allowed) {
    for (int64_t at = 0; at < vocab; at += 32, ++allowed) {
        const uint32_t bits = *allowed;
        if (bits == 0xFFFFFFFF) continue;
        const int some = vocab - at < 32 ? static_cast<int>(vocab - at) : 32;
        for (int bit = 0; bit < some; ++bit)
            if (bits == 0 || !(bits >> bit & 1)) logits[at + bit] = BANNED;
    }
}

void adjust(float* logits, int64_t vocab, const DrawParams& params, const SlotTables& tables, float* scratch) {
    const int32_t* tokens = tables.bias_tokens + params.slot * tables.bias_stride;
    const float* biases = tables.biases + params.slot * tables.bias_stride;
    for (int32_t index = 0; index < params.num_biases; ++index) logits[tokens[index]] += biases[index];
    if (penalised(params)) penalise(logits, params, tables.tokens + params.slot * tables.token_stride, scratch);
    if (params.masked) mask(logits, vocab, tables.allowed + params.mask_row * tables.mask_words);
}

bool adjusts(const DrawParams& params) { return params.num_biases > 0 || params.masked || penalised(params); }

// The `count` largest, best first; of equals the first ones.
void find_largest(const float* x, int64_t size, int32_t count, int32_t* tokens, float* values) {
    int32_t found = 0;
    for (int64_t at = 0; at < size; at += LANES) {
        const int some = left(size, at);
        if (found == count && !(largest(load_scores(x + at, some)) > values[count - 1])) continue;
        for (int64_t index = at; index < at + some; ++index) {
            if (found == count && !(x[index] > values[count - 1])) continue;
            int32_t place = found < count ? found++ : count - 1;
            for (; place > 0 && x[index] > values[place - 1]; --place) {
                values[place] = values[place - 1];
                tokens[place] = tokens[place - 1];
            }
            values[place] = x[index];
            tokens[place] = static_cast<int32_t>(index);
        }
    }
}

void measure(const float* logits, int64_t vocab, const LogprobTable& logprobs, int64_t row) {
    const int32_t count = logprobs.counts[row] < vocab ? logprobs.counts[row] : static_cast<int32_t>(vocab);
    const float top = logits[table().rows.argmax(logits, vocab)], chosen = logits[logprobs.tokens[row]];
    double total = 0.0;
    Lanes above = broadcast(0.0f);
    for (int64_t at = 0; at < vocab; at += LANES) {
        const Lanes x = load_scores(logits + at, left(vocab, at));
        total += sum(exp(x - broadcast(top)));
        above = above + where_less(broadcast(chosen), x, broadcast(1.0f), broadcast(0.0f));
    }
    const double log_total = __builtin_log(total);
    const auto logprob = [&](float x) { return static_cast<float>(static_cast<double>(x) - top - log_total); };
    logprobs.logprobs[row] = logprob(chosen);
    logprobs.ranks[row] = static_cast<int32_t>(sum(above)) + 1;
    if (count == 0) return;
    float* values = logprobs.top_logprobs + row * logprobs.width;
    find_largest(logits, vocab, count, logprobs.top_tokens + row * logprobs.width, values);
    for (int32_t place = 0; place < count; ++place) values[place] = logprob(values[place]);
}

int32_t draw(float* logits, int64_t vocab, const DrawParams& params, const SlotTables& tables,
             const LogprobTable* logprobs, int64_t row, float* scratch) {
    const bool measured = logprobs != nullptr && logprobs->counts[row] >= 0;
    float* work = logits;
    if (adjusts(params)) {
        if (measured) {
            work = scratch + 5 * (vocab + LANES);
            std::memcpy(work, logits, static_cast<size_t>(vocab) * sizeof(float));
        }
        adjust(work, vocab, params, tables, scratch);
    }
    const int32_t token = draw_token(work, vocab, params, scratch);
    if (measured) {
        logprobs->tokens[row] = token;
        measure(logits, vocab, *logprobs, row);
    }
    return token;
}

void filter(const float* logits, int64_t vocab, const DrawParams& params, const SlotTables& tables, float* scores,
            float* scratch) {
    float* work = scratch + 5 * (vocab + LANES);
    std::memcpy(work, logits, static_cast<size_t>(vocab) * sizeof(float));
    adjust(work, vocab, params, tables, scratch);
    if (params.temperature == 0.0f) {
        for (int64_t index = 0; index < vocab; ++index) scores[index] = BANNED;
        scores[table().rows.argmax(work, vocab)] = 0.0f;
        return;
    }
    const float lowest = filter_scores(work, vocab, params, scratch);
    for (int64_t index = 0; index < vocab; ++index) scores[index] = scratch[index] >= lowest ? scratch[index] : BANNED;
}

}  // namespace

void fill(DrawKernels& kernels) {
    kernels.draw = draw;
    kernels.filter = filter;
    kernels.measure = measure;
}

}  // namespace penstock::PENSTOCK_ISA
