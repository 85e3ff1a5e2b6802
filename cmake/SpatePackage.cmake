# What `cmake --install` and `cpack` put together: bin/spate, lib/libspate.so, include/spate.h and lib/spate with the libraries
# of others that both use. Such a tree may lie anywhere; it needs glibc 2.35 and the libstdc++ of GCC 12 (Debian 12, Ubuntu
# 22.04 and later).
if(NOT SPATE_SHARED)
  return()
endif()
set_target_properties(spate PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/spate")
set_target_properties(spate_shared PROPERTIES INSTALL_RPATH "$ORIGIN/spate")
install(TARGETS spate spate_shared RUNTIME_DEPENDENCY_SET libraries
  RUNTIME DESTINATION bin COMPONENT native LIBRARY DESTINATION lib COMPONENT native)
install(RUNTIME_DEPENDENCY_SET libraries
  POST_EXCLUDE_REGEXES "/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|stdc[+][+]|gcc_s))[.]so[^/]*$"
  LIBRARY DESTINATION lib/spate COMPONENT native)
install(FILES include/spate.h DESTINATION include COMPONENT native)

# The licences of the code of others in these files, libraries of headers and archives among them.
foreach(library IN ITEMS libfmt libsimdjson libpcre2 libutf8proc libxxhash libyaml-cpp libedit libbsd libmd libncurses libboost1.81
                         nlohmann-json3 libcli11 libssl)
  if(EXISTS /usr/share/doc/${library}-dev/copyright)
    install(FILES /usr/share/doc/${library}-dev/copyright DESTINATION share/doc/spate/licences RENAME ${library} COMPONENT native)
  endif()
endforeach()

# The Debian package: the same tree under /usr, and a systemd unit that nobody has enabled yet.
install(FILES deploy/systemd/spate.service DESTINATION lib/systemd/system COMPONENT system)
install(FILES deploy/systemd/serve.yaml DESTINATION /etc/spate COMPONENT system)
install(FILES LICENSE README.md CHANGELOG.md DESTINATION share/doc/spate COMPONENT system)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME spate)
set(CPACK_PACKAGE_CONTACT "The Spate authors <spate@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Serves large language models over OpenAI's and Anthropic's protocols")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.35), libstdc++6 (>= 12), libgcc-s1")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/conffiles)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
include(CPack)
