/* forms_double.h: engine/forms.h for double: struct sl_recurrence_f64, sl_form_run_f64(), … */
#ifndef SLATE_TESTS_FORMS_DOUBLE_H
#define SLATE_TESTS_FORMS_DOUBLE_H

#include "engine/forms.h"

#define sl_real double
#define SL_FORMS_NAME(name) name##_f64
#include "engine/forms_of.h"
#undef sl_real
#undef SL_FORMS_NAME

#endif
