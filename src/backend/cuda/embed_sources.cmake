# cmake -DROOT=src -DSOURCES=a.cu,b.h -DOUTPUT=embedded_sources.cpp -P embed_sources.cmake
# Writes a C++ file that holds the sources as raw string literals, under their paths from ROOT.
string(REPLACE "," ";" SOURCES "${SOURCES}")
set(text "// Made by embed_sources.cmake.\n#include \"backend/cuda/kernel_sources.h\"\n\n")
string(APPEND text "namespace spate::cuda {\nnamespace {\n\nconstexpr EmbeddedSource kSources[] = {\n")
foreach(source IN LISTS SOURCES)
  file(READ "${ROOT}/${source}" content)
  string(APPEND text "{\"${source}\", R\"SPATE_SOURCE(${content})SPATE_SOURCE\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace\n\n")
string(APPEND text "std::span<const EmbeddedSource> embedded_sources() { return kSources; }\n\n")
string(APPEND text "}  // namespace spate::cuda\n")
file(WRITE "${OUTPUT}" "${text}")
