/* CRC-32 as in zlib. Four bytes at a time by tables of nibbles: half a kilobyte in all, as larger
 * tables have left the caches by the time a step ends. Where the processor has a carry-less product,
 * all but the last bytes are folded first (Gopal and others, "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ", Intel 2009).
 */
#include "checksum.h"

#include <string.h>

/* remainders[n][v]: the remainder of v in nibble n of a word, counted from the lowest. */
static uint32_t remainders[8][16];

static uint32_t remainder_of(uint32_t remainder, const char *data, size_t num_words)
{
    for (; num_words > 0; num_words--, data += 4) {
        uint32_t word;
        memcpy(&word, data, 4);
        word ^= remainder;
        remainder = 0;
        for (int nibble = 0; nibble < 8; nibble++)
            remainder ^= remainders[nibble][word >> 4 * nibble & 15];
    }
    return remainder;
}

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

static int can_fold;

/* The remainder of lines of 16 bytes; there is at least one. */
__attribute__((target("pclmul,sse2"))) static uint32_t fold(const char *data, size_t num_lines)
{
    /* A shift by 128 bits: x^(128+32) and x^(128-32) modulo the polynomial. */
    const __m128i factors = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i sum = _mm_xor_si128(_mm_loadu_si128((const __m128i *)data), _mm_cvtsi32_si128(~0));
    for (size_t n = 1; n < num_lines; n++) {
        __m128i shifted_sum = _mm_xor_si128(_mm_clmulepi64_si128(sum, factors, 0x00),
                                        _mm_clmulepi64_si128(sum, factors, 0x11));
        sum = _mm_xor_si128(shifted_sum, _mm_loadu_si128((const __m128i *)(data + 16 * n)));
    }
    char bytes[16];
    _mm_storeu_si128((__m128i *)bytes, sum);
    return remainder_of(0, bytes, 4);
}

static void detect_processor(void)
{
    can_fold = __builtin_cpu_supports("pclmul");
}
#else
enum { can_fold = 0 };

static uint32_t fold(const char *data, size_t num_lines)
{
    return remainder_of(~0u, data, 4 * num_lines);
}

static void detect_processor(void) {}
#endif

void prepare_checksum(void)
{
    for (uint32_t value = 0; value < 16; value++) {
        uint32_t remainder = value;
        for (int nibble = 7; nibble >= 0; nibble--) {
            for (int bit = 0; bit < 4; bit++)
                remainder = remainder & 1 ? remainder >> 1 ^ 0xEDB88320u : remainder >> 1;
            remainders[nibble][value] = remainder;
        }
    }
    detect_processor();
}

uint32_t checksum_of(const void *data, size_t num_words)
{
    size_t num_lines = can_fold ? num_words / 4 : 0;
    uint32_t remainder = num_lines > 0 ? fold(data, num_lines) : ~0u;
    return ~remainder_of(remainder, (const char *)data + 16 * num_lines, num_words - 4 * num_lines);
}
