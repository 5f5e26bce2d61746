// A few rows of x times a matrix of codes or 16-bit floats, read once from memory without a pause.
//
// Each program takes tiles of 16 rows of the weight, one after the other, and its warps share the width: a warp multiplies
// chunks of its own, on tensor cores, with x in shared memory. Weights come through a ring of each warp's own in shared
// memory, by asynchronous copies that every lane waits for and reads back alone. So reading goes on across tiles, and
// begins before the launch before this one has ended, as weights do not depend on it. Sums of warps are added up in shared
// memory, those of programs that share a width (SPLITS) by the one that comes last, in their order.
//
// Layout of codes: see `kernels.coded`; runs have 64 columns, so a chunk has 128 bytes. 16-bit floats are chunks of one
// plane. Tensor cores take the columns of a product in any order that both sides have: here lane 4g + t has those of the
// 16 bytes that begin at 16t and at 64 + 16t.
//
// Constants: CODE, HALF, GROUP, SCALE, ZEROS, GATED, SILU, NORM, OUT32, TILES, STAGES; see `stream_gemv.py`.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef long long i64;

enum { FLOATS, U4, S8, E4M3 };  // CODE
enum { F16, BF16, F32 };        // SCALE

constexpr int WARPS = 8, THREADS = 32 * WARPS, RUN = 64;
constexpr int PLANES = CODE == U4 ? 4 : CODE == FLOATS ? 1 : 2, CHUNK = PLANES * RUN;
constexpr int SCALE_BYTES = SCALE == F32 ? 4 : 2;
constexpr int CHUNK_GROUPS = GROUP == 0 ? 0 : GROUP < CHUNK ? CHUNK / GROUP : 1;
constexpr int max_of(int a, int b) { return a > b ? a : b; }
constexpr int FACTOR_BYTES = GROUP == 0 ? 0 : max_of(4, CHUNK_GROUPS * SCALE_BYTES);  // of a row's chunk: scales
constexpr int STAGE_BYTES = 32 * 64 + 16 * FACTOR_BYTES + (ZEROS ? 16 * 4 : 0);
constexpr bool FOLDS = CODE == U4;                     // what all codes have too much is taken from the sums
constexpr float BASE = (HALF ? 1024 : 128) + (ZEROS ? 0 : 8);
constexpr int EXPONENT = CODE == E4M3 ? (HALF ? 8 : 120) : 0;  // codes are this power of 2 times what their bits say
constexpr int UP = EXPONENT > 100 ? 100 : 0;                   // x gets it, or else sums were too small for float32

struct Arguments {
    const u16* x;        // [rows, width]
    const u8* words;     // [lines, chunks, 128 bytes]
    const u8* scales;    // [lines, groups], or [lines]
    const u8* zeros;     // [lines, groups]
    const u16* bias;     // or null
    const float* gains;  // [width], of the norm of x
    u16* out;            // [rows, size], `stride` apart
    float* parts;
    int* arrived;
    int rows, width, size, lines, stride, chunks, groups, splits, onto;
    float eps;
};

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

template <int BYTES>
__device__ __forceinline__ void copy(u32 to, const void* from) {
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void await() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

__device__ __forceinline__ uint4 load16(u32 from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}
__device__ __forceinline__ u32 load4(u32 from) {
    u32 v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ float widen(u16 bits, bool half) {
    float value;
    if (half) asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    else value = __uint_as_float(static_cast<u32>(bits) << 16);
    return value;
}
__device__ __forceinline__ u16 narrow(float value) {
    u16 bits;
    if (HALF) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    else asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

// (a & mask) | b
__device__ __forceinline__ u32 and_or(u32 a, u32 mask, u32 b) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(mask), "r"(b));
    return r;
}
__device__ __forceinline__ u32 subtract(u32 a, u32 b) {
    u32 r;
    if (HALF) asm("sub.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    else asm("sub.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// Two columns of a plane as 16-bit floats: BASE + code of U4, the bits of E4M3 without its exponent's offset.
template <int PLANE>
__device__ __forceinline__ u32 values(u32 word) {
    constexpr u32 magic = HALF ? 0x64006400 : 0x43004300;
    if (CODE == U4) return and_or(word >> 4 * PLANE, 0x000f000f, magic);
    if (CODE == S8) {
        const u32 t = word >> 8 * PLANE;
        if (HALF) return subtract((t & 0x00ff00ff) ^ 0x64806480, 0x64806480);
        return subtract(and_or(t, 0x007f007f, magic), and_or(t, 0x00800080, magic));  // the sign is worth 128
    }
    if (CODE == E4M3) {
        constexpr u32 mask = HALF ? 0x3f803f80 : 0x07f007f0;
        constexpr int by = HALF ? 1 : 4;
        const u32 sign = PLANE ? word & 0x80008000 : word << 8 & 0x80008000;
        return and_or(PLANE ? word >> by : word << (8 - by), mask, sign);
    }
    return word;
}

__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (HALF)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The factor of a plane from the bytes of a row's chunk in shared memory.
__device__ __forceinline__ float scale_at(u32 from, int byte) {
    const u32 word = load4(from + (byte & ~3));
    if (SCALE == F32) return __uint_as_float(word);
    return widen(static_cast<u16>(byte & 2 ? word >> 16 : word), SCALE == F16);
}

__device__ __forceinline__ float activate(float x) {
    if (SILU) return x / (1.0f + __expf(-x));
    constexpr float A = 0.7978845608028654f, B = 0.044715f;  // GELU by tanh
    const float inner = A * (x + B * x * x * x);
    return x / (1.0f + __expf(-2.0f * inner));
}

// A chunk of a tile, in the order in which a warp takes them.
struct Unit {
    int tile, turn;
};

struct Ring {
    const Arguments& a;
    u32 base;  // of this warp
    int lane, g, t, warp;
    int tiles, tile_step, first_chunk, end_chunk, per_tile;

    __device__ int line(int tile, int row) const {  // of the weight; row 0 to 15
        if (GATED) return (row < 8 ? 0 : a.size) + min(tile * 8 + row % 8, a.size - 1);
        return min(tile * 16 + row, a.lines - 1);
    }
    __device__ u32 stage(int slot) const { return base + slot * STAGE_BYTES; }

    // One group of copies for each unit, also where there is nothing to copy.
    __device__ void fetch(Unit& unit, int slot) const {
        if (unit.tile < tiles) {
            const int tile = unit.tile, chunk = first_chunk + warp + unit.turn * WARPS;
            if (chunk < end_chunk) {
                const u8* low = a.words + (static_cast<i64>(line(tile, g)) * a.chunks + chunk) * 128 + t * 16;
                const u8* high = a.words + (static_cast<i64>(line(tile, g + 8)) * a.chunks + chunk) * 128 + t * 16;
                const u32 to = stage(slot) + lane * 16;
                copy<16>(to, low);
                copy<16>(to + 512, low + 64);
                copy<16>(to + 1024, high);
                copy<16>(to + 1536, high + 64);
                if (GROUP && lane < 16) {
                    const int group = min(GROUP < CHUNK ? chunk * CHUNK_GROUPS : chunk / max_of(1, GROUP / CHUNK), a.groups - 1);
                    const i64 byte = (static_cast<i64>(line(tile, lane)) * a.groups + group) * SCALE_BYTES;
                    copy<max_of(4, FACTOR_BYTES)>(stage(slot) + 2048 + lane * FACTOR_BYTES, a.scales + (byte & ~3LL));
                }
                if (ZEROS && lane >= 16) {
                    const int group = min(GROUP < CHUNK ? chunk * CHUNK_GROUPS : chunk / max_of(1, GROUP / CHUNK), a.groups - 1);
                    const i64 byte = static_cast<i64>(line(tile, lane - 16)) * a.groups + group;
                    copy<4>(stage(slot) + 2048 + 16 * FACTOR_BYTES + (lane - 16) * 4, a.zeros + (byte & ~3LL));
                }
            }
        }
        commit();
        advance(unit);
    }

    __device__ void advance(Unit& unit) const {
        if (++unit.turn == per_tile) unit.turn = 0, unit.tile += tile_step;
    }
};

__device__ __forceinline__ void store16(u32 to, const uint4& v) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// What a program has in shared memory, beside the rings of its warps.
struct Shared {
    float* reduction;  // [2][WARPS][TILES][32 lanes][4]
    float* totals;     // [planes of the share][8 * TILES]: sums of x, for U4
    float* gains;      // [width], for a norm
    float* squares;    // [rows][width / 256], for a norm
    u32 x;             // [rows, columns of the share], `x_stride` bytes apart
    int x_stride;
};

// Eight columns of x as they are multiplied: times the norm's factor and gains, and UP. Of U4 also the sum of a plane's.
__device__ __forceinline__ uint4 prepared(uint4 v, const Shared& shared, float factor, int row, int column, int piece) {
    u32* const words = &v.x;
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float low = widen(static_cast<u16>(words[i]), HALF), high = widen(static_cast<u16>(words[i] >> 16), HALF);
        if (NORM) {
            const u16 a = narrow(low * factor * shared.gains[column + 2 * i]);
            const u16 b = narrow(high * factor * shared.gains[column + 2 * i + 1]);
            words[i] = a | static_cast<u32>(b) << 16;
            low = widen(a, HALF), high = widen(b, HALF);
        }
        total += low + high;
        if (UP) words[i] = narrow(low * 1.2676506002282294e30f) | static_cast<u32>(narrow(high * 1.2676506002282294e30f)) << 16;
    }
    if (FOLDS) {  // eight lanes have the 64 columns of a plane
#pragma unroll
        for (int by = 1; by < 8; by *= 2) total += __shfl_xor_sync(0xffffffff, total, by);
        if (piece % 8 == 0) shared.totals[piece / 8 * (8 * TILES) + row] = total;
    }
    return v;
}

// x of this program's columns, from `begin` on, to shared memory. Whole warps take pieces of one row.
__device__ void load_x(const Arguments& a, const Shared& shared, int begin, int columns) {
    const int pieces = columns / 8;
    if (!NORM) {
        for (int index = threadIdx.x; index < a.rows * pieces; index += THREADS) {
            const int row = index / pieces, piece = index % pieces, column = begin + piece * 8;
            uint4 v = {0, 0, 0, 0};
            if (column < a.width) v = __ldcg(reinterpret_cast<const uint4*>(a.x + static_cast<i64>(row) * a.width + column));
            if (UP || FOLDS) v = prepared(v, shared, 1.0f, row, column, piece);
            store16(shared.x + row * shared.x_stride + piece * 16, v);
        }
        return;
    }
    const int all = a.width / 8, lots = all / 32;  // the width is a multiple of 256
    for (int index = threadIdx.x; index < a.rows * all; index += THREADS) {
        const int row = index / all, column = index % all * 8;
        const uint4 v = __ldcg(reinterpret_cast<const uint4*>(a.x + static_cast<i64>(row) * a.width + column));
        const u32 words[4] = {v.x, v.y, v.z, v.w};
        float squares = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float low = widen(static_cast<u16>(words[i]), HALF), high = widen(static_cast<u16>(words[i] >> 16), HALF);
            squares += low * low + high * high;
        }
#pragma unroll
        for (int by = 1; by < 32; by *= 2) squares += __shfl_xor_sync(0xffffffff, squares, by);
        if (threadIdx.x % 32 == 0) shared.squares[row * lots + index % all / 32] = squares;
        const int piece = (column - begin) / 8;
        if (column >= begin && piece < pieces) store16(shared.x + row * shared.x_stride + piece * 16, v);
    }
    await<STAGES - 1>();  // the gains
    __syncthreads();
    for (int index = threadIdx.x; index < a.rows * pieces; index += THREADS) {
        const int row = index / pieces, piece = index % pieces, column = begin + piece * 8;
        float sum = 0.0f;
        for (int lot = 0; lot < lots; ++lot) sum += shared.squares[row * lots + lot];
        const u32 at = shared.x + row * shared.x_stride + piece * 16;
        uint4 v = {0, 0, 0, 0};
        if (column < a.width) v = load16(at);
        store16(at, prepared(v, shared, rsqrtf(sum / a.width + a.eps), row, min(column, a.width - 8), piece));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, TILES == 1 ? 2 : 1) stream_gemv(const Arguments a) {
    extern __shared__ __align__(128) u8 memory[];
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int tiles = GATED ? (a.size + 7) / 8 : (a.lines + 15) / 16;
    const int split = blockIdx.x % a.splits, share = (a.chunks + a.splits - 1) / a.splits;
    const int first_chunk = split * share, end_chunk = min(a.chunks, first_chunk + share);
    const int first_tile = blockIdx.x / a.splits, tile_step = gridDim.x / a.splits;
    const int per_tile = (share + WARPS - 1) / WARPS;

    constexpr int REDUCTION = WARPS * TILES * 128;
    Shared shared;
    shared.reduction = reinterpret_cast<float*>(memory);
    shared.totals = shared.reduction + 2 * REDUCTION;
    shared.gains = shared.totals + (FOLDS ? share * PLANES * 8 * TILES : 0);
    shared.squares = shared.gains + (NORM ? a.width : 0);
    shared.x = shared_address(shared.squares + (NORM ? (a.rows * (a.width / 256) + 3) / 4 * 4 : 0));
    shared.x_stride = share * CHUNK * 2 + 64;  // rows fall on different banks
    const u32 x_at = shared.x, ring_at = (x_at + a.rows * shared.x_stride + 127) & ~127u;
    const int x_stride = shared.x_stride;
    const float* const totals = shared.totals;
    const Ring ring = {a, ring_at + warp * STAGES * STAGE_BYTES, lane, g, t, warp, tiles, tile_step, first_chunk, end_chunk,
                       per_tile};
    Unit next = {first_tile, 0};
    if (NORM) {
        for (int piece = threadIdx.x; piece < a.width / 4; piece += THREADS)
            copy<16>(shared_address(shared.gains) + piece * 16, a.gains + piece * 4);
        commit();
    }
#pragma unroll
    for (int slot = 0; slot < STAGES - 1; ++slot) ring.fetch(next, slot);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    load_x(a, shared, first_chunk * CHUNK, share * CHUNK);
    __syncthreads();

    float sums[TILES][4] = {};
    int slot = 0, buffer = 0, finisher = 0;
    for (Unit unit = {first_tile, 0}; unit.tile < tiles; ring.advance(unit)) {
        await<STAGES - 2>();
        __syncwarp();  // factors were copied by other lanes; and all have read what is overwritten next
        ring.fetch(next, slot == 0 ? STAGES - 1 : slot - 1);
        const int chunk = first_chunk + warp + unit.turn * WARPS;
        if (chunk < end_chunk) {
            const u32 from = ring.stage(slot), mine = from + lane * 16;
            const uint4 low[2] = {load16(mine), load16(mine + 512)}, high[2] = {load16(mine + 1024), load16(mine + 1536)};
            const u32 x_from = x_at + g * x_stride + (chunk - first_chunk) * (CHUNK * 2) + t * 16;
            const u32 low_scale = from + 2048 + g * FACTOR_BYTES, high_scale = low_scale + 8 * FACTOR_BYTES;
            const u32 low_zero = from + 2048 + 16 * FACTOR_BYTES + g * 4, high_zero = low_zero + 32;
            // Where scales and zeros of a chunk begin in their words, if groups are as large as chunks or larger.
            int odd_low = 0, odd_high = 0, zero_low = 0, zero_high = 0;
            if (GROUP && (CHUNK_GROUPS * SCALE_BYTES < 4 || ZEROS)) {
                const int group = min(GROUP < CHUNK ? chunk * CHUNK_GROUPS : chunk / max_of(1, GROUP / CHUNK), a.groups - 1);
                const int l = ring.line(unit.tile, g) * a.groups + group, h = ring.line(unit.tile, g + 8) * a.groups + group;
                odd_low = l * SCALE_BYTES & 3, odd_high = h * SCALE_BYTES & 3;
                zero_low = l & 3, zero_high = h & 3;
            }
            auto plane = [&](auto index) {
                constexpr int P = decltype(index)::value;
                constexpr int LOCAL = GROUP == 0 || GROUP >= CHUNK ? 0 : P * RUN / GROUP;
                float part[TILES][4];
                float low_base = BASE, high_base = BASE;
                if (ZEROS) {
                    const int l = zero_low + LOCAL, h = zero_high + LOCAL;
                    low_base += static_cast<float>(load4(low_zero) >> 8 * l & 255);
                    high_base += static_cast<float>(load4(high_zero) >> 8 * h & 255);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    if (FOLDS) {
                        const float2 total = *reinterpret_cast<const float2*>(
                            totals + ((chunk - first_chunk) * PLANES + P) * (8 * TILES) + tile * 8 + 2 * t);
                        part[tile][0] = -low_base * total.x, part[tile][1] = -low_base * total.y;
                        part[tile][2] = -high_base * total.x, part[tile][3] = -high_base * total.y;
                    } else {
                        part[tile][0] = part[tile][1] = part[tile][2] = part[tile][3] = 0.0f;
                    }
                }
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    uint4 v[TILES];
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        v[tile] = {0, 0, 0, 0};
                        if (tile * 8 + g < a.rows) v[tile] = load16(x_from + tile * 8 * x_stride + P * 128 + h * 64);
                    }
                    const u32 first[4] = {values<P>(low[h].x), values<P>(high[h].x), values<P>(low[h].y), values<P>(high[h].y)};
                    const u32 second[4] = {values<P>(low[h].z), values<P>(high[h].z), values<P>(low[h].w), values<P>(high[h].w)};
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        float(&to)[4] = GROUP || FOLDS ? part[tile] : sums[tile];
                        multiply(to, first, v[tile].x, v[tile].y);
                        multiply(to, second, v[tile].z, v[tile].w);
                    }
                }
                if (GROUP || FOLDS) {
                    const float low_factor = GROUP ? scale_at(low_scale, odd_low + LOCAL * SCALE_BYTES) : 1.0f;
                    const float high_factor = GROUP ? scale_at(high_scale, odd_high + LOCAL * SCALE_BYTES) : 1.0f;
#pragma unroll
                    for (int tile = 0; tile < TILES; ++tile) {
                        sums[tile][0] += low_factor * part[tile][0], sums[tile][1] += low_factor * part[tile][1];
                        sums[tile][2] += high_factor * part[tile][2], sums[tile][3] += high_factor * part[tile][3];
                    }
                }
            };
            struct P0 { enum { value = 0 }; };
            struct P1 { enum { value = 1 }; };
            struct P2 { enum { value = 2 }; };
            struct P3 { enum { value = 3 }; };
            plane(P0());
            if constexpr (PLANES > 1) plane(P1());
            if constexpr (PLANES > 2) plane(P2()), plane(P3());
        }
        slot = slot == STAGES - 1 ? 0 : slot + 1;
        if (unit.turn != per_tile - 1) continue;

        // The end of a tile.
        float4* const handed = reinterpret_cast<float4*>(shared.reduction + buffer * REDUCTION);  // [WARPS][TILES][32]
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            handed[(warp * TILES + tile) * 32 + lane] = make_float4(sums[tile][0], sums[tile][1], sums[tile][2], sums[tile][3]);
            sums[tile][0] = sums[tile][1] = sums[tile][2] = sums[tile][3] = 0.0f;
        }
        __syncthreads();
        buffer ^= 1;
        const int turn = finisher, tile_index = unit.tile;
        finisher = (finisher + 1) % WARPS;
        if (turn != warp) continue;
        float result[TILES][4] = {};
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int other = 0; other < WARPS; ++other) {
                const float4 v = handed[(other * TILES + tile) * 32 + lane];
                result[tile][0] += v.x, result[tile][1] += v.y, result[tile][2] += v.z, result[tile][3] += v.w;
            }
        }
        if (a.splits > 1) {
            float4* const mine = reinterpret_cast<float4*>(a.parts) + static_cast<i64>(tile_index) * a.splits * TILES * 32;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
                __stcg(mine + (split * TILES + tile) * 32 + lane,
                       make_float4(result[tile][0], result[tile][1], result[tile][2], result[tile][3]));
            __threadfence();
            __syncwarp();
            int before = 0;
            if (lane == 0) before = atomicAdd(a.arrived + tile_index, 1);
            before = __shfl_sync(0xffffffff, before, 0);
            if (before < a.splits - 1) continue;
            __threadfence();
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) result[tile][0] = result[tile][1] = result[tile][2] = result[tile][3] = 0.0f;
            for (int other = 0; other < a.splits; ++other) {
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const float4 v = __ldcg(mine + (other * TILES + tile) * 32 + lane);
                    result[tile][0] += v.x, result[tile][1] += v.y, result[tile][2] += v.z, result[tile][3] += v.w;
                }
            }
            if (lane == 0) a.arrived[tile_index] = 0;
        }
        const int low_line = ring.line(tile_index, g), high_line = ring.line(tile_index, g + 8);
        float low_factor = 1.0f, high_factor = 1.0f, low_bias = 0.0f, high_bias = 0.0f;
        if (GROUP == 0 && CODE != FLOATS) {
            if (SCALE == F32) {
                low_factor = reinterpret_cast<const float*>(a.scales)[low_line];
                high_factor = reinterpret_cast<const float*>(a.scales)[high_line];
            } else {
                low_factor = widen(reinterpret_cast<const u16*>(a.scales)[low_line], SCALE == F16);
                high_factor = widen(reinterpret_cast<const u16*>(a.scales)[high_line], SCALE == F16);
            }
        }
        constexpr float UNIT = EXPONENT - UP == 20 ? 1048576.0f : EXPONENT - UP == 8 ? 256.0f : 1.0f;
        low_factor *= UNIT, high_factor *= UNIT;
        if (a.bias) low_bias = widen(a.bias[low_line], HALF), high_bias = widen(a.bias[high_line], HALF);
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = tile * 8 + 2 * t + i;
                const float low = result[tile][i] * low_factor + low_bias, high = result[tile][i + 2] * high_factor + high_bias;
                if (row >= a.rows) continue;
                const i64 place = static_cast<i64>(row) * a.stride;
                auto store = [&](int at, float value) {
                    if (OUT32) {
                        reinterpret_cast<float*>(a.out)[place + at] = value;
                    } else {
                        if (a.onto) value += widen(a.out[place + at], HALF);
                        a.out[place + at] = narrow(value);
                    }
                };
                if (GATED) {
                    if (tile_index * 8 + g < a.size) store(tile_index * 8 + g, activate(low) * high);
                } else {
                    if (tile_index * 16 + g < a.lines) store(tile_index * 16 + g, low);
                    if (tile_index * 16 + g + 8 < a.lines) store(tile_index * 16 + g + 8, high);
                }
            }
        }
    }
}
