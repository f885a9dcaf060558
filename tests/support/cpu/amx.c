/* AMX's instructions on tiles, as Intel's manual defines them (Software Developer's Manual, volume 2: TDPBF16PS, and
 * volume 1, chapter 18: LDTILECFG). An instruction that would be undefined ends the process. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition) ((condition) ? (void)0 : (fprintf(stderr, "undefined: %s\n", #condition), abort()))

enum { TILES = 8, ROWS = 16, BYTES = 64 };

typedef struct { unsigned rows, bytes; uint8_t data[ROWS][BYTES]; } Tile;

static _Thread_local Tile tiles[TILES];
static _Thread_local int is_configured;

void emulated_ldtilecfg(const uint8_t *shapes) {
    EXPECT(shapes[0] == 1 && shapes[1] == 0);
    for (int i = 2; i < 16; ++i) EXPECT(shapes[i] == 0);
    for (int i = 0; i < TILES; ++i) {
        uint16_t bytes;
        memcpy(&bytes, shapes + 16 + 2 * i, sizeof bytes);
        EXPECT(bytes <= BYTES && shapes[48 + i] <= ROWS && (bytes == 0) == (shapes[48 + i] == 0));
        memset(&tiles[i], 0, sizeof tiles[i]);
        tiles[i].bytes = bytes;
        tiles[i].rows = shapes[48 + i];
    }
    is_configured = 1;
}

void emulated_tilerelease(void) { is_configured = 0; }

static Tile *tile(uint8_t number) {
    EXPECT(is_configured && number < TILES && tiles[number].rows > 0);
    return &tiles[number];
}

void emulated_tilezero(uint8_t number) { memset(tile(number)->data, 0, sizeof tiles[number].data); }

void emulated_tileloadd64(uint8_t number, const char *from, int64_t stride) {
    Tile *to = tile(number);
    memset(to->data, 0, sizeof to->data);
    for (unsigned row = 0; row < to->rows; ++row) memcpy(to->data[row], from + stride * row, to->bytes);
}

/* Any address is defined; but a row that is stored across two cache lines takes twice as long. */
void emulated_tilestored64(uint8_t number, char *to, int64_t stride) {
    const Tile *from = tile(number);
    EXPECT((uintptr_t)to % BYTES == 0 && stride % BYTES == 0);
    for (unsigned row = 0; row < from->rows; ++row) memcpy(to + stride * row, from->data[row], from->bytes);
}

/* DAZ and FTZ: numbers below the least normal one are zeros. */
static float flushed(float value) { return fabsf(value) < 0x1p-126f ? copysignf(0, value) : value; }

static float bf16(const uint8_t *row, unsigned place) {
    uint32_t bits = (uint32_t)row[2 * place] << 16 | (uint32_t)row[2 * place + 1] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return flushed(value);
}

/* The odd and the even products of a row are added up apart, each by fused multiply-adds, then both to the sum. */
void emulated_tdpbf16ps(uint8_t sums, uint8_t first, uint8_t second) {
    Tile *to = tile(sums);
    const Tile *a = tile(first), *b = tile(second);
    EXPECT(sums != first && sums != second && first != second);
    EXPECT(to->rows == a->rows && to->bytes == b->bytes && a->bytes / 4 == b->rows);
    EXPECT(to->bytes % 4 == 0 && a->bytes % 4 == 0 && b->bytes % 4 == 0);
    for (unsigned m = 0; m < to->rows; ++m)
        for (unsigned n = 0; n < to->bytes / 4; ++n) {
            float added[2] = {0, 0}, sum;
            for (unsigned k = 0; k < a->bytes / 4; ++k)
                for (unsigned i = 0; i < 2; ++i)
                    added[i] = flushed(fmaf(bf16(a->data[m], 2 * k + i), bf16(b->data[k], 2 * n + i), added[i]));
            memcpy(&sum, to->data[m] + 4 * n, sizeof sum);
            sum = flushed(flushed(sum) + flushed(added[0] + added[1]));
            memcpy(to->data[m] + 4 * n, &sum, sizeof sum);
        }
}
