/* rules.h: a small seeded model for every memory rule and for the options that change what a rule
 * computes, as files; for tests of what must hold whatever the rule is.
 *
 * Widths are no multiples of 16, heads are grouped where a rule can have that. What such a model
 * must give is for the test to know: these are inputs. */
#ifndef SLATE_TESTS_RULES_H
#define SLATE_TESTS_RULES_H

#include "tests/support/seeded.h"

struct rule {
    const char *title, *arch;
    const char *settings; /* config.json; NULL: a single file without settings */
    void (*list)(struct seeded *s);
    const char *choices; /* sl_model_options.rule */
};

/* Ends with a zeroed one. */
extern const struct rule rules[];

/* A rule's model on disk. */
struct rule_files {
    char folder[32], path[64]; /* path: what to open */
};

/* Failures end the program. */
void rule_write(const struct rule *r, struct rule_files *f);
void rule_remove(struct rule_files *f);

/* Written, opened, and removed again. opt.path is not looked at. */
struct sl_model *rule_open(const struct rule *r, const char *kernels);
enum sl_code rule_try(struct sl_model **ret, const struct rule *r, struct sl_model_options opt,
                      struct sl_error *err);

/* Opens a list of tensors with settings in memory, as one directory "m" would be: the errors name
 * m/config.json and m/model.safetensors. *ret_bytes is to be freed after the model. */
enum sl_code rule_open_list(struct sl_model **ret, const struct seeded *s, const char *settings,
                            unsigned char **ret_bytes, struct sl_error *err);

#endif
