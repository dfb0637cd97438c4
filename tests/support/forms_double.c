/* forms_double.c: engine/forms.c in double. */
#include "tests/support/forms_double.h"

#define SL_FORMS_DOUBLE
#include "engine/forms.c"
