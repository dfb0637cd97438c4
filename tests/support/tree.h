/* tree.h: folders of tests and benches. */
#ifndef SLATE_TESTS_TREE_H
#define SLATE_TESTS_TREE_H

/* Removes a folder and all in it; links are not followed. Nothing happens where there is none. */
void remove_tree(const char *path);

/* The file of that name in the folder holds that text from now on; NULL: it is not there. Failures
 * fail the test. */
void tree_put(const char *folder, const char *name, const char *text);

#endif
