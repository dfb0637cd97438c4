/* replay.c: runs a fuzzer's entry over the files of folders, without libFuzzer. It reports in the
 * form that tests/run.sh counts. A finding ends the program, as it does under libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return -1;
    int rc = -1;
    unsigned char *data = NULL;
    long n = 0;
    if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
        data = malloc((size_t)n + !n); /* exactly n bytes, so that a sanitizer sees one more */
        if (data && fread(data, 1, (size_t)n, f) == (size_t)n) {
            LLVMFuzzerTestOneInput(data, (size_t)n);
            rc = 0;
        }
    }
    free(data);
    fclose(f);
    return rc;
}

int main(int argc, char **argv)
{
    int n_passed = 0, n_failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *d = opendir(argv[i]);
        if (!d) {
            fprintf(stderr, "%s: cannot be opened\n", argv[i]);
            return 1;
        }
        for (struct dirent *e; (e = readdir(d));) {
            char path[4096];
            if (e->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            fprintf(stderr, "%s\n", path);
            if (replay_file(path) == 0)
                n_passed++;
            else
                n_failed++;
        }
        closedir(d);
    }
    printf("[  PASSED  ] %d test(s).\n", n_passed);
    if (n_failed)
        printf("[  FAILED  ] %d test(s).\n", n_failed);
    return n_failed ? 1 : 0;
}
