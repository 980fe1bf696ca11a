// SPDX-License-Identifier: MIT
// Defines KVICK_TEST_SANITIZED where a sanitizer brings its own malloc and needs address space, and
// KVICK_TEST_CLANG_THREAD_SANITIZER where that is Clang's for threads. GCC says so by macros, Clang
// by a preprocessor function.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVICK_TEST_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define KVICK_TEST_SANITIZED
#endif
#if __has_feature(thread_sanitizer)
#define KVICK_TEST_CLANG_THREAD_SANITIZER
#endif
#endif
