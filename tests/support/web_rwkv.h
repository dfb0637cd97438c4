/* web_rwkv.h: BlinkDL's files as the converters of web-rwkv and Ai00 write them: some tensors under
 * other names, and matrices that are multiplied from the right the other way round. (They also
 * round everything to F16; here values stay what they are, so that known answers hold.) */
#ifndef SLATE_TESTS_WEB_RWKV_H
#define SLATE_TESTS_WEB_RWKV_H

/* The model `from` as a new file `to`. Failures end the program. */
void web_rwkv_write(const char *from, const char *to);

#endif
