# Slate. `make help` lists the targets; README.md says what to run after which change.
#
# One makefile for everything; objects of each flavour lie in build/FLAVOR/, so flavours never mix.
# Sources are found by their folder: a new .c file needs no line here.

FLAVOR ?= release
B := build/$(FLAVOR)

CC_release := gcc
CC_debug := gcc
CC_asan := gcc
CC_tsan := gcc
CC_fuzz := clang
CC_arm64 := aarch64-linux-gnu-gcc
CC := $(CC_$(FLAVOR))

FLAGS_release := -O2 -g
FLAGS_arm64 := -O2 -g
FLAGS_debug := -O0 -g
FLAGS_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
FLAGS_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
# clang counts assert(!"why") as a conversion
FLAGS_fuzz := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined \
              -Wno-string-conversion

# What Debian calls the packages. `deps` is what building and running needs, `deps-test` what the
# tests need besides.
DEPS := gcc make pkg-config libc6-dev libuv1-dev libhiredis-dev node-llhttp libjansson-dev libxxhash-dev libonig-dev libutf8proc-dev libopenblas-dev liblapacke-dev
DEPS_TEST := libcurl4-openssl-dev libcmocka-dev curl valgrind nodejs haproxy nginx python3-numpy redis-server systemd procps iproute2
DEPS_TIDY := clang-tidy clang-format
# For the arm64 flavour on x86-64, which is run under qemu; its libraries: tests/arm64/sysroot.sh.
DEPS_ARM64 := gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
DEPS_SYSROOT := $(filter lib%-dev,$(filter-out libc6-dev,$(DEPS)) $(DEPS_TEST))
DEPS_FUZZ := clang libclang-rt-14-dev
DEPS_MODEL := python3-torch python3-numpy libopenblas0-pthread

# --- flags ---------------------------------------------------------------------------------------

PKGS := libuv jansson libxxhash oniguruma libutf8proc openblas lapacke hiredis
LLHTTP_DIR ?= /usr/share/llhttp
LLHTTP_INC ?= /usr/share/include/llhttp

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
        -Wformat=2 -Werror
# -ffp-contract=off: an a*b+c is fused where the source says fma, and nowhere else (promise 2).
CPPFLAGS := -D_GNU_SOURCE -I. -Iinclude -I$(LLHTTP_INC) $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
CFLAGS := -std=c11 $(WARN) $(FLAGS_$(FLAVOR)) -ffp-contract=off -fno-math-errno -pthread -MMD -MP
LDFLAGS := $(filter -fsanitize%,$(FLAGS_$(FLAVOR))) -pthread
PKGS_LIBS := -luv -ljansson -lxxhash -lonig -lutf8proc -lopenblas -llapacke -lhiredis
LDLIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null || echo $(PKGS_LIBS)) -lm

ARCH := $(shell uname -m)
ifeq ($(ARCH),x86_64)
DEPS_TEST += $(DEPS_ARM64)
endif

# Headers of the cross-compiler's C library come first, those that it has not from the sysroot.
ifeq ($(FLAVOR),arm64)
ARCH := aarch64
SYSROOT := build/arm64-sysroot
ARM64 := aarch64-linux-gnu
CPPFLAGS := -D_GNU_SOURCE -I. -Iinclude -I$(LLHTTP_INC) \
            -idirafter $(SYSROOT)/usr/include -idirafter $(SYSROOT)/usr/include/$(ARM64)
LDFLAGS += -L$(SYSROOT)/usr/lib/$(ARM64) \
           -Wl,-rpath-link,$(SYSROOT)/usr/lib/$(ARM64):$(SYSROOT)/lib/$(ARM64)
LDLIBS := $(PKGS_LIBS) -lm
endif

# --- sources -------------------------------------------------------------------------------------

ENGINE_SRC := $(wildcard engine/*.c engine/*/*.c)
ifneq ($(ARCH),x86_64)
ENGINE_SRC := $(filter-out engine/kernels/avx%.c,$(ENGINE_SRC))
endif
ifneq ($(ARCH),aarch64)
ENGINE_SRC := $(filter-out engine/kernels/neon%.c,$(ENGINE_SRC))
endif
PROTO_SRC := $(wildcard proto/*.c)
SERVER_SRC := $(filter-out server/main.c,$(wildcard server/*.c server/*/*.c))
SUPPORT_SRC := $(wildcard tests/support/*.c)

obj = $(patsubst %.c,$(B)/%.o,$(1))
ENGINE_OBJ := $(call obj,$(ENGINE_SRC)) $(patsubst %.S,$(B)/%.o,$(wildcard engine/models/*.S))
PROTO_OBJ := $(call obj,$(PROTO_SRC))
LLHTTP_OBJ := $(B)/llhttp/api.o $(B)/llhttp/http.o $(B)/llhttp/llhttp.o
SERVER_OBJ := $(call obj,$(SERVER_SRC)) $(LLHTTP_OBJ)
SUPPORT_OBJ := $(call obj,$(SUPPORT_SRC))

LIBSLATE := $(B)/libslate.a
LIBREST := $(B)/libslate-server.a

tests_in = $(patsubst %.c,$(B)/%,$(wildcard tests/$(1)/*_test.c))
UNIT_TESTS := $(call tests_in,unit)
VECTOR_TESTS := $(call tests_in,vectors)
API_TESTS := $(call tests_in,api)
FAULT_TESTS := $(call tests_in,fault)
CLUSTER_TESTS := $(call tests_in,cluster)
TESTS := $(UNIT_TESTS) $(VECTOR_TESTS) $(FAULT_TESTS) $(API_TESTS) $(CLUSTER_TESTS)
BITS := $(B)/tests/arm64/bits
BENCHES := $(patsubst %.c,$(B)/%,$(wildcard tests/bench/*_bench.c))
FUZZERS := $(patsubst %.c,$(B)/%,$(wildcard tests/fuzz/*_fuzz.c))
REPLAYS := $(patsubst %.c,$(B)/%_replay,$(wildcard tests/fuzz/*_fuzz.c))

# One job per processor, where make was not told otherwise.
JOBS = $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc))

# --- targets -------------------------------------------------------------------------------------

.PHONY: help all run test check soak soak-hour bench asan tsan arm64 sysroot fuzz tidy format install uninstall deps \
        deps-test deps-model model whiteboard clean
.DEFAULT_GOAL := all

all: $(B)/slate ## build the program: build/slate
	@mkdir -p build && [ "$(FLAVOR)" != release ] || ln -sfn release/slate build/slate

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: deps ## install what is missing, build, serve the embedded model on 127.0.0.1:8080
	@$(MAKE) --no-print-directory $(JOBS) all
	exec build/slate serve

test: deps deps-test ## install what is missing, build and run every test (some minutes)
	@$(MAKE) --no-print-directory $(JOBS) check

# The benches too, though none runs here: what is not built does not stay true.
check: all $(TESTS) $(REPLAYS) $(BENCHES) $(BITS)
	@SLATE_BUILD=$(B) tests/run.sh $(TESTS)

bench: all $(BENCHES) ## first figures: kernels and steps, beside the limits measured in the same run
	@$(B)/slate bench --shape rwkv7-0.1b
	@for b in $(filter-out %/long_bench,$(BENCHES)); do $$b || exit 1; done

SOAK := $(B)/tests/fault/durable_test $(B)/tests/fault/calls_test $(B)/tests/api/paging_test \
        $(B)/tests/api/sequences_test $(B)/tests/api/many_test $(B)/tests/api/cycling_test \
        $(B)/tests/api/hostile_test $(B)/tests/api/hostile_bytes_test \
        $(B)/tests/cluster/fleet_load_test \
        $(B)/tests/cluster/sequences_fleet_test \
        $(B)/tests/bench/long_bench
soak: all $(SOAK) ## 1,000 kills under load (in a fleet 200, and 50 of its Redis), each call failing, 100,000 sessions in 64 places, stores of a million, 10,000 idle connections, a million tokens in one session
	SLATE_BUILD=$(B) $(B)/tests/fault/calls_test 1
	SLATE_BUILD=$(B) $(B)/tests/fault/durable_test 1000
	SLATE_BUILD=$(B) $(B)/tests/api/paging_test 10000
	SLATE_BUILD=$(B) $(B)/tests/api/sequences_test 120
	SLATE_BUILD=$(B) $(B)/tests/api/many_test 1000000
	SLATE_BUILD=$(B) $(B)/tests/api/cycling_test 100000 600
	SLATE_BUILD=$(B) $(B)/tests/api/hostile_test 10000
	SLATE_BUILD=$(B) $(B)/tests/api/hostile_bytes_test 10000
	SLATE_BUILD=$(B) $(B)/tests/cluster/fleet_load_test 200
	SLATE_BUILD=$(B) $(B)/tests/cluster/sequences_fleet_test 300
	$(B)/tests/bench/long_bench 1000000

soak-hour: all $(B)/tests/api/soak_test ## mixed traffic for an hour (SLATE_SOAK_SECONDS), half of it in a fleet: memory, time, places
	SLATE_BUILD=$(B) SLATE_SOAK_SECONDS=$${SLATE_SOAK_SECONDS:-3600} $(B)/tests/api/soak_test

asan: deps deps-test ## every test under the address and undefined-behaviour sanitizers
	@$(MAKE) --no-print-directory $(JOBS) FLAVOR=asan check

tsan: deps deps-test ## every test under the thread sanitizer
	@$(MAKE) --no-print-directory $(JOBS) FLAVOR=tsan check

arm64: deps deps-test ## of the tests those of an arm64 build: cross-built, under qemu
	@$(MAKE) --no-print-directory $(JOBS) FLAVOR=release all $(BITS)
	@tests/arm64/suite.sh

sysroot:
	@tests/arm64/sysroot.sh $(SYSROOT) $(DEPS_SYSROOT)

FUZZ_SECONDS ?= 60
fuzz: ## run every fuzzer for FUZZ_SECONDS (60) each; needs clang
	@tests/deps.sh $(DEPS) $(DEPS_FUZZ)
	@$(MAKE) --no-print-directory $(JOBS) FLAVOR=fuzz fuzz-run
.PHONY: fuzz-run
fuzz-run: $(FUZZERS)
	@for f in $(FUZZERS); do n=$$(basename $$f _fuzz); mkdir -p build/corpus/$$n; \
	  echo "== $$n"; $$f -max_total_time=$(FUZZ_SECONDS) -print_final_stats=0 -verbosity=0 \
	  -rss_limit_mb=2048 build/corpus/$$n tests/fuzz/corpus/$$n || exit 1; done

tidy: ## clang-tidy, the layer check, the style check
	@tests/deps.sh $(DEPS) $(DEPS_TEST) $(DEPS_TIDY)
	@tests/layers.sh
	@clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h')
	@git ls-files '*.c' | grep -v '^tests/' | grep -v '^engine/kernels/neon' | \
	  xargs -P $$(nproc) -n 4 sh -c 'clang-tidy --quiet "$$@" -- $(CPPFLAGS) -std=c11 -mavx512f -mavx512bw -mavx512vnni -mavxvnni -mfma -mf16c || exit 255' tidy
	@clang-tidy --quiet engine/kernels/neon*.c -- -I. -Iinclude -std=c11 --target=aarch64-linux-gnu -march=armv8.2-a+dotprod -idirafter /usr/aarch64-linux-gnu/include

format: ## lay out every C file as .clang-format says
	@git ls-files '*.c' '*.h' | xargs clang-format -i

# Training: hours on one core; resumed where it was stopped. MODEL_FLAGS: see train.py.
TRAIN := engine/models/train
build/model/libwkv.so: $(TRAIN)/wkv.c $(TRAIN)/wkv4.c $(TRAIN)/fused.c
	@mkdir -p $(@D)
	$(call quiet,CC)$(CC) -std=c11 $(WARN) -O3 -march=native -fno-math-errno -fno-trapping-math \
	  -fno-signed-zeros -fassociative-math -freciprocal-math -shared -fPIC -o $@ $^ -lm

model: build/model/libwkv.so ## train the embedded model anew into build/model/ (hours; MODEL_FLAGS=...)
	@tests/deps.sh gcc $(DEPS_MODEL)
	/usr/bin/python3 $(TRAIN)/check.py
	/usr/bin/python3 $(TRAIN)/train.py --out build/model/tiny.pt $(MODEL_FLAGS)
	/usr/bin/python3 $(TRAIN)/weights.py build/model/tiny.pt build/model/tiny.safetensors

RULES := linear_attn retnet gla delta_net rwkv4 rwkv7
whiteboard: build/model/libwkv.so ## train one small model for each rule into build/model/whiteboard/
	@tests/deps.sh gcc $(DEPS_MODEL)
	for r in $(RULES); do /usr/bin/python3 $(TRAIN)/whiteboard.py $$r --out build/model/whiteboard/$$r $(MODEL_FLAGS) || exit 1; done

PREFIX ?= /usr/local
install: all ## copy the program to $(PREFIX)/bin
	install -D -m 755 $(B)/slate $(DESTDIR)$(PREFIX)/bin/slate

uninstall: ## remove it from there
	rm -f $(DESTDIR)$(PREFIX)/bin/slate

deps: ## install the packages that building needs
	@tests/deps.sh $(DEPS)

deps-test: ## install the packages that the tests need besides
	@tests/deps.sh $(DEPS_TEST)

deps-model: ## install the packages that training needs
	@tests/deps.sh gcc $(DEPS_MODEL)

clean: ## remove build/
	rm -rf build

# --- rules ---------------------------------------------------------------------------------------

# `make V=1` shows whole commands.
ifeq ($(V),)
quiet = @echo "  $(1) $@";
endif

$(B)/slate: $(B)/server/main.o $(LIBREST) $(LIBSLATE)
	$(call quiet,CC)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(LIBSLATE): $(ENGINE_OBJ)
	$(call quiet,AR)rm -f $@; ar rcs $@ $^
$(LIBREST): $(PROTO_OBJ) $(SERVER_OBJ)
	$(call quiet,AR)rm -f $@; ar rcs $@ $^

# Vector instructions only in the files that are entered after the processor was asked for them.
ifeq ($(FLAVOR),fuzz)
# Clang takes minutes to instrument these loops, and no fuzzer reaches them with odd sizes.
$(addprefix $(B)/engine/kernels/,avx512_matmul.o avx512_quant.o avx512_kquant.o avx2_matmul.o avx2_quant.o avx2_q8_rows.o avx2_kquant.o avx2vnni_quant.o avx2vnni_kquant.o): CFLAGS := $(filter-out -fsanitize% -fno-sanitize%,$(CFLAGS))
endif
$(addprefix $(B)/engine/kernels/,avx2.o avx2_matmul.o avx2_quant.o avx2_q8_rows.o avx2_kquant.o): CFLAGS += -mavx2 -mfma -mf16c -O3
$(B)/engine/kernels/avx2vnni_quant.o $(B)/engine/kernels/avx2vnni_kquant.o: CFLAGS += -mavx2 -mfma -mf16c -mavxvnni -O3
$(B)/engine/kernels/avx512.o $(B)/engine/kernels/avx512_matmul.o: CFLAGS += -mavx512f -mfma -mf16c -O3
$(B)/engine/kernels/avx512_quant.o $(B)/engine/kernels/avx512_kquant.o: CFLAGS += -mavx512f -mavx512bw -mavx512vnni -mfma -mf16c -O3
# Scheduling before registers are given out takes more than there are: sums went through memory.
$(addprefix $(B)/engine/kernels/,neon.o neon_matmul.o neon_quant.o neon_kquant.o neondot_quant.o neondot_kquant.o): CFLAGS += -O3 \
  $(if $(filter fuzz,$(FLAVOR)),,-fno-schedule-insns)
$(B)/engine/kernels/neondot_quant.o $(B)/engine/kernels/neondot_kquant.o: CFLAGS += -march=armv8.2-a+dotprod
ifeq ($(FLAVOR),arm64)
# Debian 12's cross-compiler breaks off there ("internal compiler error") when it makes vectors.
$(B)/tests/unit/quant_test.o: CFLAGS += -fno-tree-vectorize
endif
$(B)/engine/kernels/ref.o: CFLAGS += -O2
$(B)/engine/kernels/quant.o: CFLAGS += -O3
$(B)/engine/kernels/pack.o $(B)/engine/load_job.o $(B)/engine/candidates.o $(B)/engine/select.o $(B)/engine/snapshot_values.o $(B)/engine/base/hash.o: CFLAGS += -O3
ifeq ($(ARCH),x86_64)
$(B)/engine/base/hash_avx2.o $(B)/engine/snapshot_values_avx2.o: CFLAGS += -mavx2 -O3
endif

$(B)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call quiet,CC)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

# The embedded model: the assembler's .incbin reads the files named in the source.
$(B)/engine/models/%.o: engine/models/%.S $(wildcard engine/models/*.safetensors engine/models/*.txt)
	@mkdir -p $(@D)
	$(call quiet,CC)$(CC) -c -o $@ $<

$(B)/llhttp/%.o: $(LLHTTP_DIR)/%.c
	@mkdir -p $(@D)
	$(call quiet,CC)$(CC) -I$(LLHTTP_INC) -DLLHTTP_STRICT_MODE=1 $(FLAGS_$(FLAVOR)) -w -c -o $@ $<

$(B)/tests/%_test: $(B)/tests/%_test.o $(SUPPORT_OBJ) $(LIBREST) $(LIBSLATE)
	$(call quiet,CC)$(CC) $(LDFLAGS) -rdynamic -o $@ $^ $(LDLIBS) -lcmocka -lcurl

$(B)/tests/fault/calls_test: $(B)/tests/fault/intercept.o

# A bench takes from the tests' support only what it names.
$(B)/libsupport.a: $(SUPPORT_OBJ)
	$(call quiet,AR)rm -f $@; ar rcs $@ $^

$(B)/tests/bench/%_bench: $(B)/tests/bench/%_bench.o $(B)/libsupport.a $(LIBREST) $(LIBSLATE)
	$(call quiet,CC)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcurl -lcmocka

$(B)/tests/arm64/bits: $(B)/tests/arm64/bits.o $(B)/libsupport.a $(LIBREST) $(LIBSLATE)
	$(call quiet,CC)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

# The seeded models need nothing else of the tests' support than each other.
SEEDED_OBJ := $(call obj,tests/support/seeded.c $(wildcard tests/support/rules*.c))
$(B)/tests/fuzz/%_fuzz: $(B)/tests/fuzz/%_fuzz.o $(SEEDED_OBJ) $(LIBREST) $(LIBSLATE)
	$(call quiet,CC)$(CC) $(LDFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

$(B)/tests/fuzz/%_fuzz_replay: $(B)/tests/fuzz/%_fuzz.o $(B)/tests/fuzz/replay.o $(SEEDED_OBJ) $(LIBREST) $(LIBSLATE)
	$(call quiet,CC)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.SECONDARY:

-include $(shell find $(B) -name '*.d' 2>/dev/null)
