// utf8proc of the module of live pages: what its header declares and src/models calls.
#include "utf8proc_tables.h"

namespace tables = polyhead::live::tables;

extern "C" {

const utf8proc_property_t* utf8proc_get_property(utf8proc_int32_t code) { return tables::get_property(code); }
utf8proc_category_t utf8proc_category(utf8proc_int32_t code) { return tables::category(code); }
utf8proc_int32_t utf8proc_tolower(utf8proc_int32_t code) { return tables::tolower(code); }
utf8proc_ssize_t utf8proc_decompose_char(utf8proc_int32_t code, utf8proc_int32_t* to, utf8proc_ssize_t room, utf8proc_option_t options, int* boundary) { return tables::decompose_char(code, to, room, options, boundary); }
utf8proc_ssize_t utf8proc_normalize_utf32(utf8proc_int32_t* codes, utf8proc_ssize_t count, utf8proc_option_t options) { return tables::normalize_utf32(codes, count, options); }
utf8proc_ssize_t utf8proc_iterate(const utf8proc_uint8_t* text, utf8proc_ssize_t bytes, utf8proc_int32_t* code) { return tables::iterate(text, bytes, code); }
utf8proc_ssize_t utf8proc_encode_char(utf8proc_int32_t code, utf8proc_uint8_t* to) { return tables::encode_char(code, to); }

}  // extern "C"
