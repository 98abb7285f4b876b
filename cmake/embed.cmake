# Writes the files of a page into a C++ source: as page_files() (cli/explore/page_files.hpp), or as
# another function of a header that says so.
#
#   cmake -D OUT=page_files.cpp -D FOLDER=... -D FILES=page.html,page.css -P embed.cmake
#   cmake -D OUT=... -D FOLDER=... -D FILES=... -D HEADER=cli/serve/serve_files.hpp
#         -D FUNCTION=serve_files -P embed.cmake
if(NOT DEFINED HEADER)
  set(HEADER cli/explore/page_files.hpp)
  set(FUNCTION page_files)
endif()
string(REPLACE "," ";" files "${FILES}")
set(out "#include \"${HEADER}\"\n\nnamespace knear::cli {\n\nstd::span<const PageFile> ${FUNCTION}() {\n  static constexpr PageFile files[] = {\n")
foreach(name IN LISTS files)
  file(READ "${FOLDER}/${name}" content)
  if(content MATCHES "\\)knear\"")
    message(FATAL_ERROR "${name} holds the end of a raw string")
  endif()
  set(type "text/html")
  if(name MATCHES "css$")
    set(type "text/css")
  elseif(name MATCHES "js$")
    set(type "text/javascript")
  elseif(name MATCHES "json$")
    set(type "application/json")
  endif()
  string(APPEND out "      {\"${name}\", \"${type}; charset=utf-8\",\n       R\"knear(${content})knear\"},\n")
endforeach()
string(APPEND out "  };\n  return files;\n}\n\n}  // namespace knear::cli\n")
file(WRITE "${OUT}" "${out}")
