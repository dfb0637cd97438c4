/* table.c: every memory rule that Slate knows, a row each. */
#include "engine/mixers/mixer.h"

#include <string.h>

/* clang-format off */
const struct sl_mixer *const sl_mixers[] = {
    &sl_mixer_rwkv4,
    &sl_mixer_rwkv5,
    &sl_mixer_rwkv6,
    &sl_mixer_rwkv7,
    &sl_mixer_fla_rwkv7,
    &sl_mixer_linear,
    &sl_mixer_retnet,
    &sl_mixer_gla,
    &sl_mixer_delta_net,
    &sl_mixer_gated_delta_net,
    &sl_mixer_mamba2,
    &sl_mixer_performer,
    NULL,
};
/* clang-format on */

const struct sl_mixer *sl_mixer_find(const char *arch)
{
    for (size_t i = 0; arch && sl_mixers[i]; i++)
        if (strcmp(sl_mixers[i]->arch, arch) == 0)
            return sl_mixers[i];
    return NULL;
}

const struct sl_mixer *sl_mixer_find_type(const char *model_type)
{
    for (size_t i = 0; model_type && sl_mixers[i]; i++)
        if (sl_mixers[i]->model_type && strcmp(sl_mixers[i]->model_type, model_type) == 0)
            return sl_mixers[i];
    return NULL;
}
