// Streams that set the measured roofs: read, write, copy, 2R1W, 2R2W, each over vector width, unroll, grid and cache
// hints, and a copy that never touches registers (bulk copies through shared memory, sm_90 on). Plus empty kernels, an
// fma chain, a clock probe and a launch that ends late.

enum Mix { COPY = 0, READ = 1, WRITE = 2, READ2_WRITE1 = 3, READ2_WRITE2 = 4 };
enum Hint { PLAIN = 0, STREAMING = 1, KEEP = 2 };

// What is written is thrown out of L2 before what is read so.
__device__ __forceinline__ uint4 load_keep(const uint4* p) {
#if __CUDA_ARCH__ >= 800
  uint4 v;
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
      "ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], policy;\n}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
#else
  return *p;
#endif
}
__device__ __forceinline__ uint2 load_keep(const uint2*) = delete;

template <int HINT, typename V>
__device__ __forceinline__ V load(const V* p) {
  if constexpr (HINT == STREAMING) return __ldcs(p);
  else if constexpr (HINT == KEEP) return load_keep(p);
  else return *p;
}

template <int HINT, typename V>
__device__ __forceinline__ void store(V* p, V v) {
  if (HINT == STREAMING) __stcs(p, v);
  else *p = v;
}

__device__ __forceinline__ uint4 mixed(uint4 a, uint4 b) { return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w); }
__device__ __forceinline__ uint2 mixed(uint2 a, uint2 b) { return make_uint2(a.x ^ b.x, a.y ^ b.y); }
__device__ __forceinline__ unsigned folded(uint4 a) { return a.x ^ a.y ^ a.z ^ a.w; }
__device__ __forceinline__ unsigned folded(uint2 a) { return a.x ^ a.y; }
template <typename V> __device__ __forceinline__ V splat(unsigned v);
template <> __device__ __forceinline__ uint4 splat<uint4>(unsigned v) { return make_uint4(v, v, v, v); }
template <> __device__ __forceinline__ uint2 splat<uint2>(unsigned v) { return make_uint2(v, v); }

// n vectors a stream. A block takes tiles of blockDim.x * UNROLL vectors, gridDim.x apart: a grid of all tiles is one
// shot, a smaller one loops. All loads of a tile are issued before its first store.
template <int MIX, typename V, int UNROLL, int HINT>
__global__ void __launch_bounds__(UNROLL == 8 ? 512 : 1024) stream(const V* a, const V* b, V* c, V* d, long long n) {
  const long long tile = (long long)blockDim.x * UNROLL;
  unsigned fold = 0;
  for (long long first = blockIdx.x * tile + threadIdx.x; first < n; first += gridDim.x * tile) {
    V va[UNROLL], vb[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      const long long i = first + (long long)k * blockDim.x;
      va[k] = vb[k] = splat<V>(k);
      if (i < n && MIX != WRITE) va[k] = load<HINT>(a + i);
      if (i < n && MIX >= READ2_WRITE1) vb[k] = load<HINT>(b + i);
    }
#pragma unroll
    for (int k = 0; k < UNROLL; ++k) {
      const long long i = first + (long long)k * blockDim.x;
      const V v = MIX >= READ2_WRITE1 ? mixed(va[k], vb[k]) : va[k];
      if (MIX == READ) fold ^= folded(v);
      if (i < n && MIX != READ) store<HINT>(c + i, v);
      if (i < n && MIX == READ2_WRITE2) store<HINT>(d + i, va[k]);
    }
  }
  if (MIX == READ && fold == 0x9E3779B9u) c[0] = splat<V>(fold);  // keeps the loads; never true for the data used
}

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void wait(unsigned barrier, unsigned phase) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra out;\nbra again;\nout:\n}" ::"r"(barrier), "r"(phase) : "memory");
}

// One thread a block moves chunks of CHUNK bytes through a ring of STAGES buffers: the load of the chunk STAGES - 1
// ahead is issued once the store that used its buffer has read it out.
template <int STAGES, int CHUNK>
__global__ void bulk_copy(const char* a, const char*, char* c, char*, long long bytes) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) unsigned long long full[STAGES];
  if (threadIdx.x) return;
  for (int s = 0; s < STAGES; ++s)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[s])) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  const long long chunks = bytes / CHUNK, mine = (chunks - blockIdx.x + gridDim.x - 1) / gridDim.x;
  auto fetch = [&](long long k) {
    const int s = k % STAGES;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[s])), "r"(CHUNK)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(ring + s * CHUNK)),
        "l"(a + (blockIdx.x + k * gridDim.x) * CHUNK), "r"(CHUNK), "r"(shared_address(&full[s]))
        : "memory");
  };
  for (long long k = 0; k < STAGES - 1 && k < mine; ++k) fetch(k);
  for (long long k = 0; k < mine; ++k) {
    const int s = k % STAGES;
    if (k + STAGES - 1 < mine) {
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      fetch(k + STAGES - 1);
    }
    wait(shared_address(&full[s]), (k / STAGES) & 1);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     c + (blockIdx.x + k * gridDim.x) * CHUNK),
                 "r"(shared_address(ring + s * CHUNK)), "r"(CHUNK)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

__global__ void empty() {}

// The same where launches overlap: it lets the next one begin and waits for the end of the one before.
__global__ void empty_overlapping() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next launch begin at once and ends late: when each of its threads has waited `ns` it writes n values to where the
// next one reads, and NaN to the m elements that it writes, all as 16-bit words.
__global__ void late(const unsigned short* values, unsigned short* to, long long n, unsigned short* spoilt, long long m,
                     unsigned ns) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  while (now - begin < ns);
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, step = gridDim.x * (long long)blockDim.x;
  for (long long i = first; i < n; i += step) to[i] = values[i];
  for (long long i = first; i < m; i += step) spoilt[i] = 0xffff;
}

// 2 * 8 * 256 flops a loop turn and thread on eight independent chains; the result is stored so that it happens.
__global__ void fma_fp32(float* out, int turns) {
  float v[8];
#pragma unroll
  for (int k = 0; k < 8; ++k) v[k] = threadIdx.x + k;
  for (int t = 0; t < turns; ++t) {
#pragma unroll
    for (int r = 0; r < 256; ++r) {
#pragma unroll
      for (int k = 0; k < 8; ++k) v[k] = fmaf(v[k], 0.999f, 0.5f);
    }
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) sum += v[k];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Cycle counter and global timer of every multiprocessor, two values each at out[2 * smid]: two probes around a window
// give the SM clock inside it. Numbers of multiprocessors may have gaps, so there are more slots than multiprocessors.
__global__ void clock_probe(long long* out, int slots) {
  unsigned sm;
  long long ns;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  const long long cycles = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  if (sm >= slots) return;
  out[2 * sm] = cycles;
  out[2 * sm + 1] = ns;
}
