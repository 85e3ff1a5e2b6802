# cmake -DFOLDER=web/dist -DFILES=app.js,app.css -DOUTPUT=web_page_files.cpp -P embed_web_page.cmake
# Writes a C++ file that holds FOLDER/<name>.gz of each file as bytes.
string(REPLACE "," ";" FILES "${FILES}")
set(arrays "")
set(table "")
foreach(name IN LISTS FILES)
  file(READ "${FOLDER}/${name}.gz" bytes HEX)
  string(MAKE_C_IDENTIFIER "${name}" id)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "constexpr unsigned char k_${id}[] = {${bytes}};\n")
  string(APPEND table "    {\"${name}\", {reinterpret_cast<const char*>(k_${id}), sizeof(k_${id})}},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by embed_web_page.cmake.
#include \"server/web_page.h\"

namespace spate {
namespace {

${arrays}
const WebPageFile kFiles[] = {
${table}};

}  // namespace

std::span<const WebPageFile> web_page_files() { return kFiles; }

}  // namespace spate
")
