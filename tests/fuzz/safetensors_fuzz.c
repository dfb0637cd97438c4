/* safetensors_fuzz.c: any bytes as a safetensors file. */
#include "tests/fuzz/touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    touch_file(data, size);
    return 0;
}
