/* zlib's CRC-32 by carry-less multiplication, if the processor has it: four times as fast as by tables.

   After "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Gopal et al., Intel 2009), with its
   constants for the bit-reflected polynomial 0xEDB88320. `records.pyx` computes the rest of the data by tables, and all
   of it on other processors. */

#include <stdint.h>

#define FOLDED_BYTES_MIN 64

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define FOLDING __attribute__((target("pclmul,sse4.1")))

static int can_fold(void) {
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

/* Return `sum`, shifted by the number of bits that the constant `by` stands for, XOR `next`. */
FOLDING static inline __m128i folded(__m128i sum, __m128i by, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(sum, by, 0x00), high = _mm_clmulepi64_si128(sum, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* Return the state after `size` bytes, a multiple of 16 and at least FOLDED_BYTES_MIN. */
FOLDING static uint32_t fold(const uint8_t *data, int64_t size, uint32_t state) {
    const __m128i by_512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4), by_128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_64 = _mm_set_epi64x(0, 0x0163cd6124), reduce = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low_words = _mm_set_epi32(0, -1, 0, -1);
    const __m128i *next = (const __m128i *) data;
    __m128i sums[4], sum, low;
    for (int part = 0; part < 4; part++) sums[part] = _mm_loadu_si128(next++);
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int) state));
    for (size -= 64; size >= 64; size -= 64)
        for (int part = 0; part < 4; part++) sums[part] = folded(sums[part], by_512, _mm_loadu_si128(next++));
    sum = sums[0];
    for (int part = 1; part < 4; part++) sum = folded(sum, by_128, sums[part]);
    for (; size >= 16; size -= 16) sum = folded(sum, by_128, _mm_loadu_si128(next++));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_128, 0x10));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 4), _mm_clmulepi64_si128(_mm_and_si128(sum, low_words), by_64, 0x00));
    low = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(sum, low_words), reduce, 0x10), low_words);
    return (uint32_t) _mm_extract_epi32(_mm_xor_si128(sum, _mm_clmulepi64_si128(low, reduce, 0x00)), 1);
}

#else

static int can_fold(void) {
    return 0;
}

static uint32_t fold(const uint8_t *data, int64_t size, uint32_t state) {
    (void) data, (void) size;
    return state;
}

#endif
