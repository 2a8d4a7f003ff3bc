# cmake -DWORDS=grammar_words.txt -DOUT=grammar_words.inc -P make_words.cmake
file(STRINGS ${WORDS} words)
list(TRANSFORM words REPLACE "(.+)" "    \"\\1\",")
list(JOIN words "\n" lines)
file(WRITE ${OUT} "constexpr std::string_view kGrammarWords[] = {\n${lines}\n};\n")
