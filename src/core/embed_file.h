// POLYHEAD_EMBED_FILE(label, path) puts the bytes of a file into the program's read-only data, from label to label_end. The assembler reads the file, because a
// C++ array of the bytes would take the compiler seconds and hundreds of megabytes. One more byte follows the file, so that the two labels differ for an empty
// file.
#pragma once

// WebAssembly needs one section for each file, and the sizes of the symbols: a symbol without a size is missing from the object file.
#ifdef __wasm__
#define POLYHEAD_EMBED_OPEN(label) ".section .rodata." #label ",\"\",@\n.p2align 4\n.type " #label ",@object\n.type " #label "_end,@object\n"
#define POLYHEAD_EMBED_CLOSE(label) ".size " #label ", " #label "_end-" #label "\n.size " #label "_end, 1\n.text\n"
#else
#define POLYHEAD_EMBED_OPEN(label) ".pushsection .rodata\n.balign 16\n"
#define POLYHEAD_EMBED_CLOSE(label) ".popsection\n"
#endif
#define POLYHEAD_EMBED_FILE(label, path)                                                                                                           \
  asm(POLYHEAD_EMBED_OPEN(label) ".globl " #label "\n.hidden " #label "\n" #label ":\n.incbin \"" path "\"\n.globl " #label "_end\n.hidden " #label \
                                 "_end\n" #label "_end:\n.byte 0\n" POLYHEAD_EMBED_CLOSE(label));                                                  \
  extern "C" [[gnu::visibility("hidden")]] const char label[];                                                                                     \
  extern "C" [[gnu::visibility("hidden")]] const char label##_end[];
